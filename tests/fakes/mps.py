"""A fake of nvidia-cuda-mps-control, as a program for the PATH: a daemon that serves no GPU."""

from pathlib import Path

_PROGRAM = """#!/bin/sh
# A fake of nvidia-cuda-mps-control: a daemon that only knows whether it was told to quit.
at="$CUDA_MPS_PIPE_DIRECTORY"
if [ "$1" = "-f" ]; then
  echo "$*" >>"$FAKE_SEEN.options"
  [ -n "$FAKE_OLD" ] && [ "$2" = "-M" ] && echo "Unrecognized option" && exit 0
  [ -n "$FAKE_REFUSES" ] && echo "no such device" >"$CUDA_MPS_LOG_DIRECTORY/c.log" && exit 1
  echo "$$ $CUDA_VISIBLE_DEVICES" >"$FAKE_SEEN"
  while [ -n "$FAKE_GATE" ] && [ ! -e "$FAKE_GATE" ]; do sleep 0.05; done
  echo "$$" >"$at/$(basename "$0").pid"
  touch "$at/control"
  while [ -e "$at/control" ]; do sleep 0.05; done
  exit 0
fi
read -r order
kill -0 "$(cat "$at/$(basename "$0").pid" 2>/dev/null)" 2>/dev/null ||
  { echo "$order" >>"$FAKE_SEEN.refused"; exit 1; }
case "$order" in quit*) rm "$at/control" ;; esac
"""


def fake_mps_control(folder: Path) -> Path:
    """The program in this folder. It writes `pid GPUs` to the file in $FAKE_SEEN when it starts,
    waits for the file in $FAKE_GATE before it serves, and starts not at all with $FAKE_REFUSES.
    With $FAKE_OLD it knows no `-M`. Its options are a line of the file $FAKE_SEEN.options."""
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    return program
