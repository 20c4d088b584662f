"""Put weights into boxes: the kind of work that keeps a processor busy."""

from itertools import permutations


def fewest_boxes(weights, limit):
    """Try every order; stop when no better answer is possible."""
    if max(weights, default=0) > limit:
        raise ValueError(f"a weight of {max(weights)} does not fit into a box for {limit}")
    possible = -(-sum(weights) // limit)
    best = [[weight] for weight in weights]
    for order in permutations(weights):
        boxes = fill(order, limit)
        if len(boxes) < len(best):
            best = boxes
        if len(best) == possible:
            break
    return best


def fill(order, limit):
    """Fill one box after the other."""
    boxes = []
    for weight in order:
        if not boxes or sum(boxes[-1]) + weight > limit:
            boxes.append([])
        boxes[-1].append(weight)
    return boxes
