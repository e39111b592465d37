"""HG511 grammar-mask: the mask of a grammar is filled between logits and sampler.

## What it sees
Idle time of the GPU under frames, ops or ranges of xgrammar, outlines, llguidance or
lm-format-enforcer, or with the names that serving engines give the fill and the use of a token
mask (`fill_next_token_bitmask`, `grammar_bitmask`, `apply_token_bitmask`, `fill_vocab_mask`),
whichever thread runs them.

## Why it costs
The mask of the next token depends on the last one, so that a naive loop fills it on the CPU, for
one request after another, and uploads it while the GPU waits with finished logits.

## Example
    logits = model(tokens)
    torch.cuda.synchronize()
    matcher.fill_next_token_bitmask(bitmask)                 # the GPU waits
    apply_token_bitmask_inplace(logits, bitmask.to("cuda"))

## Use instead
    logits = model(tokens)                                   # returns once launched
    matcher.fill_next_token_bitmask(bitmask)                 # while the model runs
    apply_token_bitmask_inplace(logits, bitmask.to("cuda", non_blocking=True))

Fill while the forward pass runs, in threads over the requests, into pinned memory, and only for
requests that have a grammar.

## Options
None.

## Sources
vllm#12563 (5 %); vllm#23391, which builds the mask while the model runs; XGrammar."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hostgap.analysis.causes import Cause
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import IdlePlaces, caused_by, idle_match, named, parts_under
from hostgap.diagnosis.rule import Match, Rule
from hostgap.units import duration

_MASK = re.compile(
    r"(?:^|[/\\])(?:xgrammar|outlines|outlines_core|llguidance|lmformatenforcer)[/\\]"
    r"|(?:token|grammar|vocab)_?(?:bit)?mask|apply_grammar|fill_bitmasks?\b"
)
# What the fill takes on the host; launches and waits in it are other rules'.
_HOST = (Cause.PYTHON, Cause.DISPATCH, Cause.UNTRACED, Cause.COPY_CALL, Cause.API_CALL)


class GrammarMask(Rule):
    """The GPU waits for the mask of a grammar."""

    code = "HG511"
    name = "grammar-mask"
    title = "The GPU waits while the mask of a grammar is filled"
    advice = "Fill it while the forward pass runs, into pinned memory, in threads."

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The places at which a mask is filled while the GPU is idle."""
        names = named(context, _MASK)
        if not names.any():
            return
        filling = parts_under(context, names)
        places = IdlePlaces(context, lambda parts: caused_by(parts, *_HOST) & filling(parts))
        for site, idle in places.costliest():
            each = idle.total / context.steps
            yield idle_match(context, site, idle, f"{self.title}: {duration(each)} of idle a step")
