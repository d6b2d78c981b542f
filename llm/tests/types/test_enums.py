"""Numbers and names of the enumerations, and the states of DecodingMode."""

import enum
import pickle

import pytest
from repoagent_llm.types import enums
from repoagent_llm.types.decoding_config import DecodingMode
from repoagent_llm.types.guidance import GuidedDecodingConfig, GuidedDecodingParams

TABLE = {
    enums.ModelType: "DECODER_ONLY ENCODER_ONLY ENCODER_DECODER",
    enums.CapacitySchedulerPolicy: "MAX_UTILIZATION GUARANTEED_NO_EVICT STATIC_BATCH",
    enums.ContextChunkingPolicy: "FIRST_COME_FIRST_SERVED EQUAL_PROGRESS",
    enums.CommunicationType: "MPI",
    enums.CommunicationMode: "LEADER ORCHESTRATOR",
    enums.BatchingType: "STATIC INFLIGHT",
    enums.RequestStage: "QUEUED ENCODER_IN_PROGRESS CONTEXT_IN_PROGRESS GENERATION_IN_PROGRESS GENERATION_COMPLETE",
    enums.RequestType: ("REQUEST_TYPE_CONTEXT_AND_GENERATION REQUEST_TYPE_CONTEXT_ONLY REQUEST_TYPE_GENERATION_ONLY"),
    enums.FinishReason: "NOT_FINISHED END_ID STOP_WORDS LENGTH TIMED_OUT CANCELLED",
    enums.KvCacheTransferMode: "DRAM GDS POSIX_DEBUG_FALLBACK",
    enums.CacheTransceiverBackendType: "DEFAULT MPI UCX NIXL",
    GuidedDecodingParams.GuideType: "JSON JSON_SCHEMA REGEX EBNF_GRAMMAR STRUCTURAL_TAG",
    GuidedDecodingConfig.GuidedDecodingBackend: "XGRAMMAR LLGUIDANCE",
}


@pytest.mark.parametrize(("cls", "names"), TABLE.items(), ids=lambda item: getattr(item, "__name__", ""))
def test_members_count_from_zero(cls: type[enum.IntEnum], names: str) -> None:
    assert {member.name: int(member) for member in cls} == {name: i for i, name in enumerate(names.split())}
    assert all(pickle.loads(pickle.dumps(member)) is member for member in cls)


def test_a_backend_is_found_by_its_name_in_either_case() -> None:
    assert enums.CacheTransceiverBackendType.from_string("ucx") is enums.CacheTransceiverBackendType.UCX
    assert enums.CacheTransceiverBackendType.from_string("NIXL") is enums.CacheTransceiverBackendType.NIXL
    for wrong in ("Ucx", "tcp", ""):
        with pytest.raises(RuntimeError, match=f"^Invalid backend type: {wrong}$"):
            enums.CacheTransceiverBackendType.from_string(wrong)


@pytest.mark.parametrize(
    ("mode", "predicates", "name", "state"),
    [
        (DecodingMode.Auto(), {"isAuto"}, "Unknown", 4096),
        (DecodingMode.TopK(), {"isTopK", "isTopKorTopP"}, "TopKorTopP", 9983),
        (DecodingMode.TopP(), {"isTopP", "isTopKorTopP"}, "TopKorTopP", 18175),
        (DecodingMode.TopKTopP(), {"isTopK", "isTopP", "isTopKorTopP", "isTopKandTopP"}, "TopKorTopP", 26367),
        (DecodingMode.BeamSearch(), {"isBeamSearch"}, "BeamSearch", 33535),
        (DecodingMode.Medusa(), {"isMedusa"}, "Medusa", 66000),
        (DecodingMode.Lookahead(), {"isLookahead"}, "Lookahead", 131536),
        (DecodingMode.ExplicitDraftTokens(), {"isExplicitDraftTokens"}, "ExplicitDraftTokens", 262592),
        (DecodingMode.Eagle(), {"isEagle"}, "Eagle", 1049024),
    ],
)
def test_each_decoding_mode_answers_to_its_predicates(
    mode: DecodingMode, predicates: set[str], name: str, state: int
) -> None:
    asked = {item for item in dir(mode) if item.startswith("is")}
    assert {item for item in asked if getattr(mode, item)()} == predicates
    assert mode.name == name
    assert mode.__getstate__() == state
    assert pickle.loads(pickle.dumps(mode)).__getstate__() == mode.__getstate__()


def test_variable_beam_width_is_bit_eleven() -> None:
    mode = DecodingMode.BeamSearch()
    before = mode.__getstate__()
    mode.useVariableBeamWidthSearch(True)
    assert mode.__getstate__() ^ before == 1 << 11
    mode.useVariableBeamWidthSearch(False)
    assert mode.__getstate__() == before
    with pytest.raises(RuntimeError, match="Invalid DecodingMode state!"):
        mode.__setstate__("x")
