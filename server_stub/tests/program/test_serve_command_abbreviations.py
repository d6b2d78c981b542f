"""Shortened flags, as Triton's getopt_long takes them."""

from typing import Any

import click
import pytest


def test_a_flag_may_be_shortened_as_long_as_one_only_begins_like_that(parse: Any) -> None:
    options = parse("--model-repo=/more", "--http-p", "81", "--strict-r=false", "--disable", "--exit-t=5")
    assert options.model_repository == ("/models", "/more")
    assert (options.http_port, options.strict_readiness, options.strict_model_config) == (81, False, True)
    assert options.exit_timeout_secs == 5


def test_a_name_in_full_is_not_taken_for_the_beginning_of_another(parse: Any) -> None:
    assert parse("--rate-limit=execution_count").rate_limit == "execution_count"


def test_two_names_of_one_flag_may_begin_alike(parse: Any) -> None:
    assert parse("--reuse-h=true").reuse_http_port
    assert parse("--model-s=/more").model_repository == ("/models", "/more")


def test_a_value_is_left_as_it_is(parse: Any) -> None:
    assert parse("--server-id", "--http-p").server_id == "--http-p"
    assert parse("--server-id=--http-p").server_id == "--http-p"


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--grpc-use=1", "flag '--grpc-use' is ambiguous; it may be --grpc-use-ssl, --grpc-use-ssl-mutual"),
        ("--allow-s", "flag '--allow-s' is ambiguous; it may be --allow-sagemaker, --allow-swap"),
        ("--nosuch", "No such option '--nosuch'"),
        ("--=x", "No such option '--'"),
    ],
)
def test_what_could_be_several_flags_or_none_is_refused(parse: Any, flag: str, message: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        parse(flag)
    assert message in " ".join(caught.value.message.split())


def test_after_two_dashes_nothing_is_a_flag(parse: Any) -> None:
    with pytest.raises(click.UsageError, match="unexpected extra argument"):
        parse("--", "--http-p")
