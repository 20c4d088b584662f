"""Steps of workflows."""

from taskharbor_django import Failure, PermanentError, TemporaryError, task

ran = []


@task
def first(value=0):
    return value


@task
def plus(value, more=1):
    return value + more


@task
def total(values):
    return sum(values)


@task
def collect(values):
    """Return results in their order, and the state of what has none."""
    return [value.state if isinstance(value, Failure) else value for value in values]


@task
def mark(*args):
    """Note that it ran, and with what."""
    ran.append(args)
    return list(args)


@task
def boom(*_):
    raise PermanentError("it broke", code="broken")


@task(max_attempts=1)
def tire(*_):
    raise TemporaryError("once too often")


@task(keep=False)
def fleeting(value=0):
    return value


@task
def unstorable(*_):
    return object()


@task(takes_context=True)
def fan_out(context, count, key="part"):
    """Add as many jobs to the workflow as it is told."""
    for number in range(count):
        context.add(first.s(number), key=f"{key}-{number}")
    return -1


@task(takes_context=True, atomic=True)
def fan_out_atomic(context, count, *, fails=False):
    for number in range(count):
        context.add(first.s(number), key=str(number))
    if fails:
        raise PermanentError("after all")
    return -1


@task(takes_context=True, isolation="process")
def fan_out_isolated(context, count):
    for number in range(count):
        context.add(first.s(number), key=str(number))
    return -1


@task(takes_context=True)
async def afan_out(context, count):
    for number in range(count):
        await context.aadd(first.s(number), key=str(number))
    return -1


@task(takes_context=True, max_attempts=2, backoff={"strategy": "constant", "initial": 0.01})
def fan_out_and_stumble(context, count):
    """Add the same each time, and fail the first time."""
    for number in range(count):
        context.add(first.s(number), key=str(number))
    if context.attempt == 1:
        raise TemporaryError("stumbled")
    return -1


@task
async def aplus(value, more=1):
    return value + more


@task(isolation="process")
def plus_apart(value, more=1):
    return value + more
