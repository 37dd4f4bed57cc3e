"""Workloads made to fit: lengths scaled, long requests left out, tenants dealt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline.workload.requests import TimedRequest, Workload, WorkloadError


def scale_lengths(workload: Workload, factor: float) -> Workload:
    """All prompts and answers times `factor`, at least one token each; prefixes stay shared in proportion."""
    if not factor > 0:
        raise WorkloadError(f"the scale of lengths is {factor}; it must be above 0")
    if factor == 1:
        return workload
    made = replace(workload, requests=[_scaled(request, factor) for request in workload.requests], block_size=None)
    made.name = f"{workload.name} (lengths x {factor:g})"
    return made


def leave_out_long(workload: Workload, limit: int) -> Workload:
    """Without the requests of more than `limit` tokens, prompt and answer together; they are counted."""
    kept = [request for request in workload.requests if request.prompt_len + request.output_len <= limit]
    left = len(workload) - len(kept)
    if not left:
        return workload
    if not kept:
        raise WorkloadError(f"{workload.name}: every request has more than {limit} tokens")
    return replace(workload, requests=kept, skipped={**workload.skipped, f"more than {limit} tokens": left})


def deal_tenants(workload: Workload, weights: dict[str, float], seed: int = 0) -> Workload:
    """Each request (each conversation) given to a tenant at random, by weight."""
    if not weights or min(weights.values()) <= 0:
        raise WorkloadError("tenants need weights above 0")
    names, total = list(weights), sum(weights.values())
    generator = np.random.default_rng((seed, 2))
    dealt: dict[str, str] = {}
    shares = [weights[name] / total for name in names]
    drawn = generator.choice(len(names), len(workload), p=shares).tolist()
    requests = []
    for request, which in zip(workload.requests, drawn, strict=True):
        tenant = dealt.setdefault(request.session, names[which]) if request.session else names[which]
        requests.append(replace(request, tenant=tenant))
    return replace(workload, requests=requests)


def _scaled(request: TimedRequest, factor: float) -> TimedRequest:
    if request.parts:
        parts = tuple((key, max(1, round(length * factor))) for key, length in request.parts)
        prompt_len = sum(length for _, length in parts)
    elif request.prompt is not None:
        parts, prompt_len = (), max(1, min(round(request.prompt_len * factor), request.prompt_len))
    else:
        raise WorkloadError(f"request {request.id}: its prompt is text, whose length cannot be scaled")
    output_len = max(1, round(request.output_len * factor))
    prompt = None if request.prompt is None else request.prompt[:prompt_len]
    return replace(request, parts=parts, prompt=prompt, prompt_len=prompt_len, output_len=output_len)
