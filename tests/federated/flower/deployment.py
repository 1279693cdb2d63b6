# SPDX-License-Identifier: Apache-2.0
"""A SuperLink and SuperNodes as processes of their own on loopback, with TLS and SuperNode authentication."""

import contextlib
import datetime
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import sfumato

HOST = "127.0.0.1"
BIN = Path(sys.executable).parent
SOURCES = Path(sfumato.__file__).parents[1]
PATIENCE = 120.0  # seconds, for what takes a few on an idle machine


def environment(folder):
    """Return an environment in which Flower keeps its files in a folder and calls nobody."""
    keep = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return keep | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCES),
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
    }


def free_port():
    with socket.socket() as one:
        one.bind((HOST, 0))
        return one.getsockname()[1]


def wait_until(true, what, *, patience=PATIENCE):
    """Wait for something that another process does; fail after a long time."""
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, f"{what} did not happen in {patience:g} seconds"
        time.sleep(0.1)


# --- certificates and keys -------------------------------------------------------------------------------


def _pem(key):
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())


def _certificate(subject, key, issuer, issuer_key, *, authority):
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(True, False, False, False, False, authority, authority, False, False)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def make_certificates(folder):
    """Write ca.crt, server.pem and server.key."""

    def name(text):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _certificate(name("test authority"), authority, name("test authority"), authority, authority=True)
    own = _certificate(name("localhost"), server, name("test authority"), authority, authority=False)
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(own.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(_pem(server))


def make_node_key(path):
    """Write an elliptic key as `ssh-keygen -t ecdsa -b 384 -N "" -f PATH` does, and its public half."""
    key = ec.generate_private_key(ec.SECP384R1())
    kind = serialization.PrivateFormat.OpenSSH
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()))
    path.chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")


# --- processes -------------------------------------------------------------------------------------------


class Deployment:
    """One SuperLink and its SuperNodes; a context manager that ends all of them."""

    def __init__(self, folder):
        self.folder, self.port = Path(folder), free_port()
        self._started = {}
        self._environment = environment(self.folder)

    def __enter__(self):
        make_certificates(self.folder)
        config = self.folder / "flwr" / "config.toml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(
            f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "{HOST}:{self.port}"\n'
            f'root-certificates = "{self.folder / "ca.crt"}"\n'
        )
        with contextlib.ExitStack() as undo:
            undo.callback(self.__exit__, None, None, None)
            self._start_superlink()
            undo.pop_all()
        return self

    def __exit__(self, *_):
        for process in self._started.values():
            self.kill(process)

    def _start(self, name, *command):
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *map(str, command[1:])],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self.folder,
                start_new_session=True,
            )
        self._started[name] = process
        return process

    def _tls(self):
        return (
            *("--ssl-ca-certfile", self.folder / "ca.crt"),
            *("--ssl-certfile", self.folder / "server.pem"),
            *("--ssl-keyfile", self.folder / "server.key"),
        )

    def _start_superlink(self):
        self._start(
            "superlink",
            "flower-superlink",
            *self._tls(),
            *("--host", HOST, "--port", self.port),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        )
        wait_until(lambda: "running on" in self.log("superlink"), "the start of the SuperLink")

    def start_node(self, number, *, of, registered=True):
        """Start the SuperNode of a partition, with a key that the SuperLink knows or not."""
        name = f"node{number}"
        key = self.folder / name
        if not key.exists():
            make_node_key(key)
            if registered:
                self.flwr("supernode", "register", key.with_suffix(".pub"), "local")
        return self._start(
            name,
            "flower-supernode",
            *("--superlink", f"{HOST}:{self.port}", "--root-certificates", self.folder / "ca.crt"),
            *("--auth-supernode-private-key", key),
            *self._tls(),
            *("--host", HOST, "--port", free_port()),
            *("--node-config", f"partition-id={number} num-partitions={of}"),
        )

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def flwr(self, *arguments, check=True):
        """Run a command of Flower; return what it printed."""
        done = subprocess.run(
            [str(BIN / "flwr"), *map(str, arguments)],
            capture_output=True,
            text=True,
            env=self._environment,
            cwd=self.folder,
            timeout=PATIENCE,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, project, **config):
        """Start a run; return its id."""
        told = [f"{name}={json.dumps(value)}" for name, value in config.items()]
        flags = ("--run-config", " ".join(told)) if told else ()
        return json.loads(self.flwr("run", project, "local", *flags, "--format", "json"))["run-id"]

    def status(self, run_id):
        """Return what Flower says of a run, such as "finished:completed"."""
        listed = json.loads(self.flwr("list", "local", "--run-id", run_id, "--format", "json"))
        return listed["runs"][0]["status"]

    def wait_for(self, run_id, *, patience=PATIENCE):
        """Wait until a run is finished; return its status."""
        told = re.compile(f"Finished task [0-9]+ of run {run_id}")
        wait_until(lambda: told.search(self.log("superlink")), "the end of the run", patience=patience)
        return self.status(run_id)

    def kill_node(self, number):
        """End a SuperNode and its ClientApp at once."""
        self.kill(self._started[f"node{number}"])

    def kill_server_app(self):
        """End the process of the ServerApp at once, as a power failure would."""
        (process,) = self.processes("flwr-serverapp")
        self.kill(process)

    def processes(self, program):
        """Return the processes below ours that run a program, such as "flwr-serverapp"."""
        found = []
        for process in self._started.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                found += psutil.Process(process.pid).children(recursive=True)
        return [one for one in found if _runs(one, program)]

    def kill(self, process):
        """End a process and all that it started, at once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(process.pid)
            for one in (*own.children(recursive=True), own):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGKILL)
        if isinstance(process, subprocess.Popen):
            process.wait()


def _runs(process, program):
    try:
        return any(Path(word).name == program for word in process.cmdline()[:2])
    except psutil.Error:
        return False
