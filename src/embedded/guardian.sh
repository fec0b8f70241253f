# The guardian of one scratch directory. It outlives the process that started it, however that one ended, sees
# the servers of the directory out, and removes it.
#
# $1: the directory. Standard input: a line `PID SIGNAL` for every server that was started; its end says that the
# process which held the pipe is gone, or has no more use for the directory.

trap '' HUP INT QUIT TERM
dir=$1

servers=
while read -r pid signal; do
    servers="$servers $pid:$signal"
done

# Whether the process is one of ours: a pid that was told long ago may meanwhile be somebody else's, but nobody
# else's command line names this directory.
ours() {
    if [ -e /proc/self/cmdline ]; then
        grep -qF -- "$dir/" "/proc/$1/cmdline" 2>/dev/null
    else
        ps -o command= -p "$1" 2>/dev/null | grep -qF -- "$dir/"
    fi
}

pause() {
    sleep 0.05 2>/dev/null || sleep 1 # whole seconds only, where POSIX is taken at its word
}

# Where the kernel has a death signal, the servers are on their way out already, and this is a repetition.
for server in $servers; do
    pid=${server%%:*}
    ours "$pid" && kill -"${server##*:}" "$pid" 2>/dev/null
done

# PostgreSQL gives its own children 5 s before it kills them; then it is killed itself.
for server in $servers; do
    pid=${server%%:*}
    looks=0
    while [ "$looks" -lt 200 ] && ours "$pid"; do
        looks=$((looks + 1))
        [ "$looks" -eq 160 ] && kill -9 "$pid" 2>/dev/null
        pause
    done
done

# A PostgreSQL that was killed leaves its System V segment behind (56 bytes, but their number is limited). It is
# named in the seventh line of the file that only a clean end removes.
if [ -f "$dir/data/postmaster.pid" ]; then
    sed -n 7p "$dir/data/postmaster.pid" | {
        read -r _ segment && [ -n "$segment" ] && ipcrm -m "$segment"
    } >/dev/null 2>&1
fi

# The children of a killed PostgreSQL may still write for a moment, so once may not be enough.
looks=0
until rm -rf -- "$dir" 2>/dev/null || [ "$looks" -ge 100 ]; do
    looks=$((looks + 1))
    pause
done
