"""What keeps a party running: a systemd unit and a container file in its kit."""

from __future__ import annotations

import sys

from cipherbayes.engine.flare.kits import Kit
from cipherbayes.version import __version__

UNIT = """\
# {what}: copy to /etc/systemd/system/cipherbayes-{name}.service, then
#   systemctl daemon-reload && systemctl enable --now cipherbayes-{name}
# Run it as the user who owns this folder, always the same one: the state folder below
# is what shows that a ledger was put back from an old copy.
[Unit]
Description=cipherbayes {role} {name}
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
User=cipherbayes
ExecStart={program} cipherbayes {role} start {kit}
Restart=always
RestartSec=30
StateDirectory=cipherbayes
StateDirectoryMode=0700
Environment=CIPHERBAYES_STATE=/var/lib/cipherbayes CIPHERBAYES_SCRATCH={kit}
# Passwords of a database: ~/.pgpass of this user, or
# EnvironmentFile=/etc/cipherbayes/{name}.env (0600) with PGPASSWORD=...
UMask=0077
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
# This folder{ledger}.
ReadWritePaths={kit}

[Install]
WantedBy=multi-user.target
"""

CONTAINER = """\
# {what}, in a container:
#   podman build -t cipherbayes-{name} -f service/Containerfile .
#   podman run -d --name {name} --restart=always{port} \\
#     -v {kit}:/kit -v cipherbayes-{name}-state:/state cipherbayes-{name}
# Keys and records are in no image. Never throw the volume /state away: without it the
# ledgers of this party open only with the owner's word (`cipherbayes ledger --adopt`).
FROM docker.io/library/python:3.12-slim
RUN pip install --no-cache-dir "cipherbayes[flare,database]=={version}" \\
    && useradd --uid 10001 --create-home party \\
    && install -d -o party -g party -m 0700 /state
USER party
ENV CIPHERBAYES_STATE=/state CIPHERBAYES_SCRATCH=/kit
VOLUME ["/kit", "/state"]
HEALTHCHECK --interval=5m --timeout=30s --start-period=1m \\
    CMD ["cipherbayes", "{role}", "health", "/kit"]
ENTRYPOINT ["cipherbayes", "{role}", "start", "/kit"]
"""


def service_files(kit: Kit, port: int, *, here: bool) -> dict[str, str]:
    """Files of a kit's folder ``service``: name -> text.

    Parameters
    ----------
    here
        Whether this is the party's own machine. The lead, who makes kits, tells no path
        of his.
    """
    folder = str(kit.path) if here else f"/srv/cipherbayes/{kit.name}"
    program = f"{sys.executable} -m" if here else "/usr/bin/env"
    words = {
        "what": f"The {kit.role} {kit.name}"
        if kit.role == "site"
        else f"The {kit.role}",
        "name": kit.name,
        "role": kit.role,
        "kit": folder,
        "program": program,
        "version": __version__,
        "port": f" -p {port}:{port}" if kit.role == "server" else "",
        "ledger": ", and that of the ledger if site.toml names another"
        if kit.role == "site"
        else "",
    }
    return {
        f"cipherbayes-{kit.name}.service": UNIT.format(**words),
        "Containerfile": CONTAINER.format(**words),
    }
