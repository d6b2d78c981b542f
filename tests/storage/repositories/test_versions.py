from repoagent.storage.repositories.sources import version_numbers


def test_versions_are_plain_numbers_that_clients_can_ask_for() -> None:
    names = ["1", "10", "2", "03", "latest", "-1", "0", str(2**63 - 1), str(2**63), "9" * 19, "٣"]
    assert version_numbers(names) == [1, 2, 10, 2**63 - 1]
