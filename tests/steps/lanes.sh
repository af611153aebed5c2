# How `./test` runs its steps: a lane is a list of steps, one after the other; lanes run beside each other, so that one
# that waits leaves no core idle. What a step says is kept and shown whole when it has ended. The first step that fails
# ends everything; so does Ctrl-C.

work=$PWD/target/steps
lanes=()

# Seconds of processor time of everything that this shell has started and that has ended, into `busy`.
count_busy() {
  local stat=()
  [ ! -r /proc/self/stat ] || read -ra stat </proc/self/stat
  busy=$(((${stat[15]:-0} + ${stat[16]:-0}) / 100))
}

# Runs a function as a step with that name.
step() {
  local name=$1 status=0 start=$SECONDS took worked
  local log=$work/$2.log
  count_busy
  local busy_before=$busy
  set +e
  (
    set -euo pipefail
    "${@:2}"
  ) >"$log" 2>&1 </dev/null
  status=$?
  set -e
  count_busy
  took=$((SECONDS - start)) worked=$((busy - busy_before))
  printf '%6d s %6d s of processor time  %s\n' $took $worked "$name" >>"$work/times"
  # One step after the other shows what it said.
  until mkdir "$work/showing" 2>/dev/null; do sleep 0.1; done
  printf '\n== %s\n' "$name"
  cat "$log"
  if [ $status = 0 ]; then
    printf '(%d s, %d s of processor time)\n' $took $worked
    touch "$work/$2.done"
  else
    printf '(failed with status %d after %d s)\n' $status $took
    echo "$name" >>"$work/failed"
  fi
  rmdir "$work/showing"
  if [ $status != 0 ]; then
    kill -USR1 $$
    exit 1
  fi
}

# Waits until a step of another lane has ended well. If it fails, so does everything.
after() {
  until [ -e "$work/$1.done" ]; do sleep 0.2; done
}

# For a lane that only has to be ready in the end: leaves the processor to those that wait for answers.
in_background() {
  renice -n 10 -p "$(exec sh -c 'echo $PPID')" >/dev/null 2>&1 || true
}

# Starts a function as a lane, in a process group of its own.
lane() {
  set -m
  {
    set +m
    "$@"
  } &
  lanes+=($!)
  set +m
}

# Ends all lanes with everything that they have started.
end_lanes() {
  trap '' INT TERM USR1
  local lane
  for lane in "${lanes[@]}"; do kill -TERM -- "-$lane" 2>/dev/null || true; done
  wait
  [ ! -s "$work/failed" ] || printf '\nfailed: %s\n' "$(cat "$work/failed")" >&2
  exit 1
}

prepare_lanes() {
  rm -rf "$work"
  mkdir -p "$work"
  trap end_lanes INT TERM USR1
}

# Waits for all lanes, and says what took how long.
finish_lanes() {
  local lane
  for lane in "${lanes[@]}"; do wait "$lane" || end_lanes; done
  printf '\nlongest first:\n'
  sort -rn "$work/times"
  count_busy
  echo "all good, in $((SECONDS / 60)) min $((SECONDS % 60)) s and $busy s of processor time"
}
