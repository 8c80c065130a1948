"""Coefficients in the columns' own units say what a layer of standardised features says."""

import pytest
import torch

from fedbary.data.layout import Layout
from fedbary.data.standardise import Standardiser, Sums
from fedbary.errors import SettingError
from fedbary.tasks._contrasts import against, columns_of

LAYOUT = Layout(
    (("age", ()), ("stage", ("I", "II", "III", "IV")), ("still", ()), ("sex", ("f", "m"))),
    ("alive", "dead", "lost"),
)


def rows(generator: torch.Generator) -> torch.Tensor:
    """Return 200 rows; ``still`` has no spread, and no row has stage I."""
    age = 2000 + 5 * torch.randn(200, 1, generator=generator, dtype=torch.float64)
    stage = torch.nn.functional.one_hot(torch.randint(1, 4, (200,), generator=generator), 4)
    sex = torch.nn.functional.one_hot(torch.randint(0, 2, (200,), generator=generator), 2)
    return torch.cat([age, stage, torch.full((200, 1), 7.0), sex], 1)


@pytest.mark.parametrize("seed", range(3))
def test_contrasts_give_the_differences_of_logits(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = rows(generator)
    scale = Standardiser.from_sums(Sums.of(x))
    terms, units, columns = columns_of(LAYOUT, scale.mean, scale.std, {"sex": "m"})
    assert terms == ("age", "stage=III", "stage=IV", "sex=f", "intercept")
    assert units == ("per 1", "against II", "against II", "against m", "")

    weights = torch.randn(3, x.shape[1] + 1, generator=generator, dtype=torch.float64)
    z = (x - scale.mean) / scale.std
    logits = z @ weights[:, :-1].T + weights[:, -1]
    beta = against(3, 1) @ weights @ columns.T
    design = torch.cat([x[:, [0, 3, 4, 6]], torch.ones(200, 1)], 1)
    torch.testing.assert_close(design @ beta.T, logits[:, [0, 2]] - logits[:, [1]])


def test_a_reference_has_rows() -> None:
    scale = Standardiser.from_sums(Sums.of(rows(torch.Generator().manual_seed(0))))
    with pytest.raises(SettingError) as caught:
        columns_of(LAYOUT, scale.mean, scale.std, {"stage": "I"})
    assert caught.value.setting == "reference of stage"
