"""`POST /tokenize` and `POST /detokenize`, as vLLM has them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from paceline.errors import RequestError
from paceline.server.models import DetokenizeBody, TokenizeBody
from paceline.server.prompts import chat_text
from paceline.server.service import TheService, body_schema
from paceline.server.streaming import JSON

router = APIRouter()


@router.post("/tokenize", openapi_extra=body_schema(TokenizeBody))
async def tokenize(request: Request, service: TheService) -> Response:
    body = await service.read(request, TokenizeBody)
    engine = service.engine
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("exactly one of prompt and messages is needed", param="prompt")
    if body.prompt is not None:
        text, special = body.prompt, True
    else:
        text, special = chat_text(engine, body), False
    if body.add_special_tokens is not None:
        special = body.add_special_tokens
    tokens = await engine.encode(text, add_special_tokens=special)
    return JSON(
        {
            "count": len(tokens),
            "max_model_len": engine.max_model_len,
            "tokens": tokens,
            "token_strs": [engine.tokenizer.token(token) for token in tokens] if body.return_token_strs else None,
        }
    )


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeBody))
async def detokenize(request: Request, service: TheService) -> Response:
    body = await service.read(request, DetokenizeBody)
    engine = service.engine
    for token in body.tokens:
        if not 0 <= token < engine.vocab_size:
            raise RequestError(
                f"tokens has token id {token}; the vocabulary goes from 0 to {engine.vocab_size - 1}", param="tokens"
            )
    return JSON({"prompt": engine.tokenizer.decode(body.tokens, skip_special_tokens=False)})
