"""A strict policy for every page of the tests, as a careful project sends it."""

POLICY = "default-src 'self'"


def strict_policy(get_response):
    """Let browsers refuse inline scripts, inline styles and other sites."""

    def answer(request):
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return answer
