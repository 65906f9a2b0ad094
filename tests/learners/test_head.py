"""Heads with a bias, a scale and a soft cap: figures and gradients equal plain formulas."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div

from tests.helpers.families import make_family
from tests.helpers.learners import count_compiled
from tests.helpers.rows import every_row
from unstable.learners.model.head import Head
from unstable.learners.model.logprobs import (
    Chunk,
    DivergenceTarget,
    compiled_chunk,
    selected_logprobs,
)

ROWS, WIDTH, WORDS = 5, 4, 9


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


TARGETS = torch.tensor([0, 8, 3, 3, 1])
TEMPERATURES = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.8], dtype=torch.float64)
HIDDEN, OTHER = normal(ROWS, WIDTH, seed=0), normal(ROWS, WIDTH, seed=1)
WEIGHT, BIAS = normal(WORDS, WIDTH, seed=2), normal(WORDS, seed=3)
FROZEN = Head(normal(WORDS, WIDTH, seed=4), normal(WORDS, seed=5), 0.7, 2.0)
AIMS = {
    "reverse": DivergenceTarget(OTHER, "reverse", head=FROZEN),
    "forward": DivergenceTarget(OTHER, "forward", head=FROZEN),
    "jsd": DivergenceTarget(OTHER, "jsd", 0.3, head=FROZEN),
}


def figures(
    hidden: Tensor, head: Head, chunk_rows: int = 2, chunk: type[Chunk] | None = None
) -> Sequence[Tensor]:
    aims = AIMS | ({} if head.trained else {"its own head's": DivergenceTarget(OTHER)})
    found = selected_logprobs(
        hidden, head, TARGETS, TEMPERATURES, chunk_rows, entropy=True, aims=aims, chunk=chunk
    )

    return found.logprobs_N, found.entropies_N, *found.divergences.values()


def plain_logprobs(hidden: Tensor, head: Head) -> Tensor:
    logits = hidden @ head.weight_VD.T
    if head.bias_V is not None:
        logits = logits + head.bias_V
    logits = logits * head.scale
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    return (logits / TEMPERATURES[:, None]).log_softmax(-1)


def plain_figures(hidden: Tensor, head: Head) -> Sequence[Tensor]:
    own, other = plain_logprobs(hidden, head), plain_logprobs(OTHER, FROZEN)
    mixed = (0.3 * other.exp() + 0.7 * own.exp()).log()

    def kl(first: Tensor, second: Tensor) -> Tensor:
        return kl_div(second, first, reduction="none", log_target=True).sum(-1)

    return (
        own.gather(1, TARGETS[:, None])[:, 0],
        -(own.exp() * own).sum(-1),
        kl(own, other),
        kl(other, own),
        0.3 * kl(other, mixed) + 0.7 * kl(own, mixed),
        *([] if head.trained else [kl(own, plain_logprobs(OTHER, head))]),
    )


@every_row("chunk_rows", 2, 10, 100)
@every_row("trained", False, True)
@every_row("softcap", None, 1.5)
@every_row("bias", False, True)
@every_row("scale", 1.0, 0.4)
def test_figures_and_gradients_equal_plain_formulas(
    scale: float, bias: bool, softcap: float | None, trained: bool, chunk_rows: int
) -> None:

    given = [HIDDEN, WEIGHT, *([BIAS] if bias else [])]
    inputs = [each.clone().requires_grad_(i == 0 or trained) for i, each in enumerate(given)]
    head = Head(inputs[1], inputs[2] if bias else None, scale, softcap)
    found, expected = figures(inputs[0], head, chunk_rows), plain_figures(inputs[0], head)

    torch.testing.assert_close(found, expected)
    wanted = inputs if trained else inputs[:1]
    weights = torch.linspace(-1, 2, ROWS, dtype=torch.float64)
    sums = [[(weights * each).sum() for each in of] for of in (found, expected)]
    together = tuple(torch.stack(each).sum() for each in sums)
    for pair in [*zip(*sums, strict=True), together]:  # each figure, then their sum
        gradients = (torch.autograd.grad(each, wanted, retain_graph=True) for each in pair)
        torch.testing.assert_close(*gradients)

    assert torch.autograd.gradcheck(
        lambda hidden, *rest: figures(
            hidden, Head(rest[0], rest[1] if bias else None, scale, softcap)
        ),
        inputs,
        fast_mode=True,  # derivatives were compared with the plain formula above
    )


@every_row("trained", False, True)
@every_row("softcap", None, 1.5)
def test_compiled_chunks_equal_plain_ones(
    softcap: float | None, trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, kinds = count_compiled(monkeypatch), (Chunk, compiled_chunk())
    both = []
    for chunk in kinds:
        inputs = [HIDDEN.clone().requires_grad_(), WEIGHT.clone().requires_grad_(trained)]
        found = figures(inputs[0], Head(inputs[1], BIAS, 0.4, softcap), 12, chunk)
        sum(each.sum() for each in found).backward()
        both.append([*found, *(each.grad for each in inputs if each.grad is not None)])
    torch.testing.assert_close(*both)
    assert len(runs) > (3 if trained else 1)  # chunks of two or three rows; backward, too


def test_entropies_have_no_gradient_unless_requested() -> None:
    weight = WEIGHT.clone().requires_grad_()
    found = selected_logprobs(HIDDEN, Head(weight), TARGETS, TEMPERATURES)
    assert found.logprobs_N.requires_grad and not found.entropies_N.requires_grad
    with torch.no_grad():
        found = selected_logprobs(HIDDEN, Head(weight), TARGETS, TEMPERATURES)
    assert not found.logprobs_N.requires_grad
    hidden = HIDDEN.clone().requires_grad_()
    found = selected_logprobs(hidden, Head(WEIGHT), TARGETS, TEMPERATURES)
    assert not found.divergences and not found.entropies_N.requires_grad
    assert [each is None for each in found.logprobs_N.grad_fn.saved_tensors] == [False, True]


def test_trained_head_holds_logits_of_one_chunk() -> None:
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            found = function(*args, **(kwargs or {}))
            if isinstance(found, Tensor) and found.dim() == 2 and found.shape[1] == WORDS:
                largest = max(largest, len(found))
            return found

    weight, hidden = WEIGHT.clone().requires_grad_(), HIDDEN.clone().requires_grad_()
    with Watch():
        figures(hidden, Head(weight), chunk_rows=8)[0].sum().backward()  # 2 rows per chunk
    assert largest == 2


@every_row("trained", False, True)
def test_bfloat16_head_gradients_are_close(trained: bool) -> None:
    hidden, weight = HIDDEN.bfloat16(), WEIGHT.bfloat16()
    inputs = [hidden.requires_grad_(), weight.requires_grad_(trained)]
    found = selected_logprobs(
        inputs[0], Head(inputs[1], None, 0.5, 2.0), TARGETS, TEMPERATURES.float()
    ).logprobs_N
    assert found.dtype == torch.float32
    exact = [each.detach().double().requires_grad_() for each in inputs]
    expected = plain_figures(exact[0], Head(exact[1], None, 0.5, 2.0))[0]
    torch.testing.assert_close(found.double(), expected, atol=0.02, rtol=0.02)
    count = 2 if trained else 1
    pairs = itertools.zip_longest(
        torch.autograd.grad(found.sum(), inputs[:count]),
        torch.autograd.grad(expected.sum(), exact[:count]),
    )
    for own, other in pairs:
        assert (own.double() - other).norm() < 0.02 * other.norm()


@every_row(
    "kind, scale, softcap",
    *(
        [("llama", 1, None), ("gemma2", 1, 0.4), ("cohere2", 0.3, None), ("granite", 5, None)]
        + [("falcon_h1", 1.7, None)]
    ),
)
def test_head_is_read_from_config(kind: str, scale: float, softcap: float | None) -> None:
    head = Head.of(make_family(kind))
    assert (head.scale, head.softcap) == (pytest.approx(scale), softcap)
    assert head.bias_V is None and not head.trained
