"""Watches of all pods that do nothing with what they read.

    python bare_watches_process.py HOST:PORT CA CERTIFICATE KEY COUNT

Says `watching` once for each of them.
"""

import http.client
import json
import ssl
import sys
import threading

_PODS = "/api/v1/pods"


def watch(where: str, context: ssl.SSLContext) -> None:
    """One watch; it begins again from now when the API server ends it."""
    while True:
        connection = http.client.HTTPSConnection(where, context=context)
        connection.request("GET", f"{_PODS}?limit=1")
        since = json.loads(connection.getresponse().read())["metadata"]["resourceVersion"]
        connection.request("GET", f"{_PODS}?watch=1&resourceVersion={since}")
        answer = connection.getresponse()
        print("watching", flush=True)
        while answer.read1(1 << 20):
            pass
        connection.close()


def main() -> None:
    where, authority, certificate, key, count = sys.argv[1:]
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(certificate, key)
    threads = [threading.Thread(target=watch, args=(where, context)) for _ in range(int(count))]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main()
