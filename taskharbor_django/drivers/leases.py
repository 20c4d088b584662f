"""
Leases in portable form: what a call holds, renewal, and their end before their time.

Locks:  lease rows by UPDATE and DELETE; no job is locked.
Fence:  an expired lease is never renewed: the UPDATE looks at the expiry of the row it locks.
Repeat: safe.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db.models import Count
from django.db.models.functions import Greatest

from ..models import Job, Lease
from ..values import Lease as LeaseValue
from ..values import Reservation
from . import rows


def held(using: str, call: UUID, now: datetime) -> list[Reservation]:
    leases = Lease.objects.using(using).filter(call=call, expires_at__gt=now)
    expiries = {row.token: row for row in leases}
    jobs = Job.objects.using(using).inflight().filter(lease__in=list(expiries)).in_line()
    workers = {row.worker for row in expiries.values()}
    return rows.reservations(
        jobs.values_list(*rows.RUN_FIELDS),
        {key: row.expires_at for key, row in expiries.items()},
        next(iter(workers), ""),
    )


def expire(using: str, worker: str, now: datetime) -> int:
    leases = Lease.objects.using(using).filter(worker=worker, expires_at__gt=now)
    # By token: an UPDATE that scans would wait for locks of other workers' rows on MariaDB.
    tokens = list(leases.values_list("token", flat=True))
    return leases.filter(token__in=tokens).update(expires_at=now)


def renew(
    using: str, tokens: list[UUID], now: datetime, expires_at: datetime
) -> dict[UUID, LeaseValue]:
    """
    Renew in statements of their own, each by primary key.

    A lease that is seen, and afterwards covers no inflight job, never will again: its claim
    wrote both at once.
    """
    seen = Lease.objects.using(using).filter(token__in=tokens)
    known = set(seen.values_list("token", flat=True))
    inflight = Job.objects.using(using).inflight().filter(lease__in=tokens)
    jobs = dict(inflight.order_by().values_list("lease").annotate(jobs=Count("pk")))
    alive = seen.filter(expires_at__gt=now)
    alone = [token for token in known if jobs.get(token) == 1]
    shared = [token for token in known if jobs.get(token, 0) > 1]
    alive.filter(token__in=alone).update(expires_at=expires_at)
    alive.filter(token__in=shared).update(expires_at=Greatest("expires_at", expires_at))
    if empty := known - jobs.keys():
        seen.filter(token__in=empty).delete()
    renewed = alive.filter(token__in=alone + shared).values_list("token", "expires_at", "worker")
    return {row[0]: LeaseValue(row[0], row[1], worker=row[2]) for row in renewed}
