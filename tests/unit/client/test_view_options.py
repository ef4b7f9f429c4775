"""Oracle: the service's own model of a view's options."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.api import models
from service.client.view_options import ViewOptions


def test_the_client_knows_every_option_of_the_service() -> None:
    assert set(ViewOptions.__annotations__) == set(models.ViewOptions.model_fields)


MEANT = {
    "retian": 'did you mean "retain"?',
    "timezone": 'did you mean "time_zone"?',
    "x": "there are backfill, ",
}


@pytest.mark.parametrize(("name", "said"), MEANT.items())
def test_an_unknown_option_names_the_nearest_at_its_path(name: str, said: str) -> None:
    given = {"name": "v", "query": "SELECT 1", "options": {"history": "7 days", name: 1}}
    with pytest.raises(ValidationError) as caught:
        models.CreateView.model_validate(given)
    (found,) = caught.value.errors()
    assert found["loc"] == ("options", name) and said in found["msg"]
    with pytest.raises(ValidationError):
        models.ReplaceView.model_validate({"query": "SELECT 1", "options": {name: 1}})
