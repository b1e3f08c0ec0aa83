"""torch.isnan(input_ids).any() finds bad input.

What people say
    loss=inf at the first step means NaN in the input; test torch.isnan(input_ids).any().
What is true
    Token ids are integers, so the test is always False. A bad id raises an index error (on a GPU a
    device-side assert), a NaN in a float input gives loss NaN in the same step, labels that are all ignored
    give NaN too; an infinite loss comes from a logit of -inf at the label.
How it is measured
    Ids beyond the vocabulary, negative and huge, are tested and looked up in an embedding; losses of NaN
    logits, of a -inf logit and of ignored labels are computed.
What to do
    Check the range of ids and labels, the number of labels that count, and non-finite values of float inputs:
    monitor.batch(batch) does (FS101).
Source
    Measured; torch.nn.functional.cross_entropy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement
from floatscope_trainer.facts.samples import gaussian

VOCABULARY = 100


def _loss(logits: Tensor, labels: Tensor) -> float:
    return float(functional.cross_entropy(logits, labels))


def measure() -> Measured:
    """Tests ids, looks them up, computes losses."""
    bad = torch.tensor([[5, VOCABULARY, -1, 2**62]])
    found_by_isnan = bool(torch.isnan(bad).any())
    found_by_range = int(((bad < 0) | (bad >= VOCABULARY)).sum())
    raised = False
    try:
        functional.embedding(torch.tensor([VOCABULARY]), gaussian(VOCABULARY, 4))
    except IndexError:
        raised = True
    logits, labels = gaussian(8, VOCABULARY), torch.arange(8)
    with_nan, with_inf = logits.clone(), logits.clone()
    with_nan[0, 3] = math.nan
    with_inf[0, 0] = -math.inf
    nan_loss = _loss(with_nan, labels)
    inf_loss = _loss(with_inf, labels)
    ignored = _loss(logits, torch.full((8,), -100))
    return Measured(
        figures=(
            Figure("bad ids", 3),
            Figure("bad ids that the range test finds", found_by_range, published=(3, 3)),
            Figure("loss with a NaN logit", nan_loss),
            Figure("loss with -inf at the label", inf_loss),
            Figure("loss with all labels ignored", ignored),
        ),
        claimed=(
            Statement("isnan finds ids that are out of range", found_by_isnan),
            Statement("NaN in the input gives loss=inf", math.isinf(nan_loss)),
        ),
        true=(
            Statement("the range test finds all of them", found_by_range == 3),
            Statement("looking one up raises an index error", raised),
            Statement("NaN gives loss=NaN, in the same step", math.isnan(nan_loss)),
            Statement("-inf at the label gives loss=inf", math.isinf(inf_loss)),
            Statement("all labels ignored gives loss=NaN", math.isnan(ignored)),
        ),
    )


FACT = Fact("token-id-nan", "false", measure)
