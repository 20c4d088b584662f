"""Which way the database takes to the rows of a verb: its real statements, explained."""

import json
import re

from django.db import connections


def statements(work, using="default"):
    """Run the work; return the statements it sent, each with its parameters."""
    sent = []

    def note(run, sql, parameters, many, context):
        sent.append((sql, parameters))
        return run(sql, parameters, many, context)

    with connections[using].execute_wrapper(note):
        work()
    return sent


def only(sent, *words):
    """The one statement among them that says all these words."""
    found = [each for each in sent if all(word in each[0] for word in words)]
    assert len(found) == 1, [sql[:80] for sql, _ in found or sent]
    return found[0]


class Node:
    """One step of a PostgreSQL plan, and those below it."""

    def __init__(self, facts):
        self.kind = facts["Node Type"]
        self.index = facts.get("Index Name")
        self.table = facts.get("Relation Name")
        self.entry = facts.get("Index Cond", "")
        self.below = [Node(each) for each in facts.get("Plans", ())]

    def all(self):
        yield self
        for each in self.below:
            yield from each.all()

    def first(self, kind):
        return next(node for node in self.all() if node.kind == kind)

    @property
    def kinds(self):
        return {node.kind for node in self.all()}

    @property
    def indexes(self):
        return {node.index for node in self.all() if node.index}

    @property
    def scanned(self):
        """The tables that are read from end to end."""
        return {node.table for node in self.all() if node.kind == "Seq Scan"}


def explain(statement, using="default"):
    """The plan for these parameters, handed over as this connection hands them over."""
    sql, parameters = statement
    with connections[using].cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters)
        return _node(cursor)


def explain_generic(statement, using="default"):
    """The plan for any parameters, which a server falls back to when a statement is prepared."""
    sql, _ = statement
    text, count = numbered(sql)
    with connections[using].cursor() as cursor:
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE explained AS {text}")
        unknown = f"({', '.join(['NULL'] * count)})" if count else ""
        try:
            cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE explained {unknown}")
            return _node(cursor)
        finally:
            cursor.execute("DEALLOCATE explained")
            cursor.execute("SET LOCAL plan_cache_mode = auto")


def _node(cursor):
    (plan,) = cursor.fetchone()
    plan = json.loads(plan) if isinstance(plan, str) else plan
    return Node(plan[0]["Plan"])


def numbered(sql):
    """A statement with $1, $2, ... in its places, and how many there are."""
    names = []

    def place(match):
        name = match[1] or f"place {len(names)}"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return re.sub(r"%(?:\((\w+)\))?s", place, sql), len(names)
