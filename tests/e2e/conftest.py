"""What tests of a running stack share: a client of the module's ``stack``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from shared.client import AsyncClient
from tests.stack import Stack


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(stack.address, lost_after_s=60.0) as connected:
        yield connected
