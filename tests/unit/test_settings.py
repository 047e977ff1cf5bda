from __future__ import annotations

import pytest

from calmem import Memory
from calmem.errors import InvalidInput
from calmem.settings import Settings


def test_a_port_that_cannot_be_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(InvalidInput) as refused:
        Settings.from_env({"CALMEM_RETRIEVAL_PORT": "65536"})
    assert str(refused.value) == "CALMEM_RETRIEVAL_PORT: must be a whole number from 0 to 65535, not '65536'"


def test_a_cosine_that_nothing_reaches_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^CALMEM_MIN_COSINE: must be a number from 0 to 1, not '4'$"):
        Settings.from_env({"CALMEM_MIN_COSINE": "4"})


def test_the_highest_port_is_taken() -> None:
    assert Settings.from_env({"CALMEM_RETRIEVAL_PORT": "65535"}).retrieval_port == 65_535


@pytest.mark.parametrize(("service", "port"), [("ingest", 8101), ("retrieval", 8102)])
def test_the_example_of_an_address_has_the_port_of_its_service(service: str, port: int) -> None:
    with pytest.raises(InvalidInput, match=f"^CALMEM_{service.upper()}_URL: .* http://127.0.0.1:{port}$"):
        Memory(settings=Settings(), **{f"{service}_url": "127.0.0.1"})
