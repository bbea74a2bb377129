"""What the machine is: facts that need nothing of ours, and what our programs find on it."""

import ctypes
import glob
import pathlib
import re
import site
import sys
import sysconfig

SWITCHES = ("vmm", "cudnn", "green", "windows", "graphs")  # of PIPER_CUDA_WITHOUT


def wheels():
    """Returns the folders of NVIDIA's libraries beside this Python."""
    packages = {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"], *site.getsitepackages()}
    return sorted(folder for each in packages for folder in glob.glob(f"{each}/nvidia/*/lib"))


def driver():
    """Returns what cuInit and cuDriverGetVersion answer, or why they cannot be called."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as problem:
        return str(problem)
    version = ctypes.c_int()
    return {"cuInit": cuda.cuInit(0), "cuDriverGetVersion": cuda.cuDriverGetVersion(ctypes.byref(version)), "version": version.value}


def facts(session):
    """Writes down what the machine is, for whoever plans for one that is not there."""
    raw = {"driver": driver(), "wheels": wheels(), "python": sys.version}
    commands = {"nvidia-smi": ["nvidia-smi", "-q"], "lscpu": ["lscpu"], "ldconfig": ["bash", "-c", "ldconfig -p | grep -E 'cuda|nvrtc|cublas|cudnn|nccl'"],
                "cudnn": [sys.executable, pathlib.Path(__file__).with_name("cudnn_properties.py")]}
    for program in ("bin/piper-run", "tests/conformance_test", "tests/cuda_session"):
        commands[f"ldd {program}"] = ["bash", "-c", f"LD_LIBRARY_PATH={session.build}/lib ldd {session.build / program}"]
    for name, command in commands.items():
        code, output = session.run(command, 20)
        session.write_log(f"{name}: {code}", output)
        if name == "cudnn":
            raw["cudnn_properties"] = output[-20000:]
        if name.startswith("ldd") and "not found" in output:
            session.note(f"libraries of {name[4:]}", False, output="\n".join(line for line in output.splitlines() if "not found" in line))
    smi = session.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit,compute_cap",
                       "--format=csv,noheader"], 20)[1].strip()
    session.facts["machine"] = {**raw, "nvidia_smi": smi, "devices": session.devices}
    missing = re.findall(r"^ +(\w+) +missing", session.devices, re.M)
    session.note("a device and its libraries", session.device != "no device" and (session.dry or not missing), nvidia_smi=smi,
                 driver=raw["driver"], missing=missing, output=session.devices)


def first_calls(session):
    """Runs a short life of the backend; if that is not right, again without each of the driver's and libraries' newer parts."""
    program = session.build / "tests/cuda_session"
    code, output = session.run([program], 60)
    session.write_log("cuda_session", output)
    passed = code == 0 and output.strip().endswith("right")
    session.note("cuda_session", passed, said=output.strip().splitlines()[-1:], output="" if passed else output)
    for switch in () if passed else SWITCHES:
        code, output = session.run([program], 30, {"PIPER_CUDA_WITHOUT": switch})
        session.note(f"cuda_session without {switch}", code == 0 and output.strip().endswith("right"), output=output)
