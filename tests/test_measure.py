"""The numbers that `make measure` prints of the tree's size."""

from pathlib import Path

from tests import measure

_TREE = Path(measure.__file__).parents[1]


def test_an_importer_is_a_file_that_names_the_module_or_something_of_it() -> None:
    folder = _TREE / "repoagent"
    product = {
        folder / "a.py": "import repoagent.b\nfrom repoagent.c import thing\n",
        folder / "b.py": "from repoagent import c\nfrom repoagent.c import other\n",
        folder / "c.py": "from repoagent.c import itself\n",
    }
    assert measure.importers(product) == {"repoagent.b": 1, "repoagent.c": 2}


def test_a_protocol_is_lonely_until_a_second_class_has_its_methods() -> None:
    protocol = "class Closing(Protocol):\n    def close(self): ...\n"
    one, other = ("class One:\n    def close(self): ...\n", "class Other(One):\n    def close(self): ...\n    x = 1\n")
    assert [measure.lonely_protocols(texts) for texts in ([protocol], [protocol, one], [protocol, one, other])] == [
        1,
        1,
        0,
    ]


def test_a_field_and_an_inherited_method_count_and_a_base_of_asyncio_is_no_protocol() -> None:
    protocol = "class Shaped(Protocol):\n    @property\n    def shape(self): ...\n    def close(self): ...\n"
    base = "class Base:\n    def close(self): ...\n"
    field = "class Plain(Base):\n    shape: tuple\n"
    assigned = "class Made(Base):\n    def __init__(self):\n        self.shape = ()\n"
    assert measure.lonely_protocols([protocol, base, field]) == 1
    assert measure.lonely_protocols([protocol, base, field, assigned]) == 0
    assert measure.lonely_protocols(["class Socket(asyncio.Protocol):\n    def data_received(self): ...\n"]) == 0


def test_the_product_has_no_tests_and_no_generated_messages() -> None:
    product = [path for path in measure.files(("repoagent", "server_stub")) if "tests" not in path.parts]
    assert _TREE / "repoagent" / "errors.py" in product
    assert not [path for path in product if "_pb2" in path.name]
    assert dict(measure.static())["benchmarks, lines in files"].endswith(f" in {len(measure.files(('benchmarks',)))}")
