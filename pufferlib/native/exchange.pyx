# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Orders of a parent to its workers and their answers, through shared memory (see lanes.h)."""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pufferlib.exceptions import APIUsageError

cdef enum:
    LOOK_NS = 1000000000


cdef extern from "lanes.h" nogil:
    ctypedef struct Lane:
        uint32_t kind
        uint32_t notified
        uint32_t said
    ctypedef struct Board:
        Lane lanes[1]
    ctypedef struct Spin:
        int64_t most
        int64_t now
        bint polite
        int sleeps
        int left
    void lane_order(Lane *lane, uint32_t kind)
    void lane_notify(Lane *lane)
    int lanes_wait(Board *board, int lanes, const int32_t *groups, int count, int size,
                   Spin *spin, int64_t limit_ns)
    void lane_answer(Board *board, Lane *lane, bint says)
    bint lane_await(Lane *lane, Spin *spin, int64_t limit_ns)
    bint lane_idle(const Lane *lane)
    int64_t lanes_clock()
    int life_bind(int descriptor, bint by_signal)


cdef class Lanes:
    """Orders of a parent to `count` workers and their answers, in `Lanes.size(count)` bytes.

    `block` is shared memory, zero at first. Waiting spins for at most `spin_us` microseconds and
    then sleeps; a `polite` waiter lets others have the core while it spins.
    """

    cdef Py_buffer buffer
    cdef Board *board
    cdef readonly int count
    cdef int32_t *groups
    cdef Spin spin

    def __cinit__(self, block, int count, double spin_us, bint polite):
        PyObject_GetBuffer(block, &self.buffer, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        if self.buffer.len < self.size(count):
            raise APIUsageError(f"{count} lanes do not fit into {self.buffer.len} bytes")
        self.board = <Board *>self.buffer.buf
        self.count = count
        self.groups = <int32_t *>calloc(count, sizeof(int32_t))
        self.spin.most = self.spin.now = <int64_t>(1000 * spin_us)
        self.spin.polite = polite
        self.spin.sleeps = self.spin.left = 0

    def __dealloc__(self):
        free(self.groups)
        if self.buffer.obj is not None:
            PyBuffer_Release(&self.buffer)

    @staticmethod
    def size(int count):
        """Bytes that `count` lanes take."""
        return sizeof(Board) + count * sizeof(Lane)

    def order(self, int begin, int end, uint32_t kind):
        """Give an order to the idle workers `begin` to `end` (not included)."""
        cdef int i
        for i in range(begin, end):
            lane_order(&self.board.lanes[i], kind)

    def notify(self):
        """Notify every worker."""
        cdef int i
        for i in range(self.count):
            lane_notify(&self.board.lanes[i])

    def clear(self, int i):
        """Make lane `i` as it was at first, while no process waits on it."""
        memset(&self.board.lanes[i], 0, sizeof(Lane))

    def wait(self, list groups, int size, double limit_s):
        """Wait until a group is idle → its index in the list, or -1 when the time is over.

        Group g is the workers g * size to g * size + size - 1.
        """
        return self.await_first(groups, <int>len(groups), size, limit_s)

    cdef int await_first(self, list groups, int n, int size, double limit_s) except -2:
        cdef int i
        cdef int64_t limit = <int64_t>(limit_s * 1e9)
        for i in range(n):
            self.groups[i] = groups[i]
        with nogil:
            i = lanes_wait(self.board, self.count, self.groups, n, size, &self.spin, limit)
        return i

    def speakers(self, int begin, int end):
        """The workers of `begin` to `end` (not included) whose answer has an unread message."""
        cdef int i
        result = ()
        for i in range(begin, end):
            if self.board.lanes[i].said:
                self.board.lanes[i].said = 0
                result += (i,)
        return result

    def receive(self, int i, double limit_s):
        """In worker `i`: wait for what to do → the kind of order, 0 for a notification, or -1
        when the time is over."""
        cdef Lane *lane = &self.board.lanes[i]
        cdef int64_t limit = <int64_t>(limit_s * 1e9)
        cdef bint due
        with nogil:
            due = lane_await(lane, &self.spin, limit)
        if not due:
            return -1
        if lane.notified:
            lane.notified = 0
            return 0
        return lane.kind

    def answer(self, int i, bint says):
        """In worker `i`: the order is carried out; with `says`, a message follows."""
        lane_answer(self.board, &self.board.lanes[i], says)

cdef class Exchange:
    """The orders of a parent to groups of workers, and the batches of their answers.

    Group g is the workers g * size to g * size + size - 1; a batch is `per_batch` groups. A group
    is `pending` from its order on, oldest first; `ready` once it has answered, until there are
    enough of them; and `current` while its batch is the one received last. With `in_order` groups
    become ready in the order of their orders, else as they answer.
    """

    cdef Lanes lanes
    cdef readonly int size, per_batch
    cdef bint in_order
    cdef readonly list pending, ready, current
    cdef int64_t *ordered_at  # of each group, nanoseconds
    cdef int64_t looked_at

    def __cinit__(self, Lanes lanes not None, int size, int per_batch, bint in_order):
        self.lanes, self.size, self.per_batch, self.in_order = lanes, size, per_batch, in_order
        self.pending, self.ready, self.current = [], [], []
        self.ordered_at = <int64_t *>calloc(lanes.count, sizeof(int64_t))

    def __dealloc__(self):
        free(self.ordered_at)

    def order(self, groups, uint32_t kind):
        """Give an order to idle groups."""
        cdef int group
        cdef int64_t now = lanes_clock()
        for group in groups:
            self.ordered_at[group] = now
            self.lanes.order(group * self.size, (group + 1) * self.size, kind)
            self.pending.append(group)

    def gather(self, double watch_s):
        """Wait until a batch is ready, which becomes `current` → True; False when it is time to
        see if the workers of `unanswered` live: nobody answered for `watch_s`, or for a second
        only others than the oldest. Call it again then."""
        cdef int i, n
        cdef Lanes lanes = self.lanes
        cdef int64_t now
        while len(self.ready) < self.per_batch:
            n = <int>len(self.pending)
            if self.in_order and n > 1:
                n = 1
            i = lanes.await_first(self.pending, n, self.size, watch_s)
            if i != 0:
                now = lanes_clock()
                if i < 0 or now - max(self.ordered_at[self.pending[0]], self.looked_at) > LOOK_NS:
                    self.looked_at = now
                    return False
            self.ready.append(self.pending.pop(i))
        self.current, self.ready = self.ready, []
        return True

    def unanswered(self):
        """(worker, kind of its order, seconds since) for workers that have not answered yet."""
        cdef int group, i
        cdef int64_t now = lanes_clock()
        result = []
        for group in self.pending:
            age_s = (now - self.ordered_at[group]) * 1e-9
            for i in range(group * self.size, (group + 1) * self.size):
                if not lane_idle(&self.lanes.board.lanes[i]):
                    result.append((i, self.lanes.board.lanes[i].kind, age_s))
        return result

    def speaks(self):
        """Whether an answer of the current batch has an unread message."""
        cdef int group, i
        for group in self.current:
            for i in range(group * self.size, (group + 1) * self.size):
                if self.lanes.board.lanes[i].said:
                    return True
        return False

    def forget(self):
        """Forget all orders and answers, while no worker is busy."""
        self.pending, self.ready, self.current = [], [], []


def bind_life(int descriptor, bint by_signal):
    """End this process when the other end of socket `descriptor` closes (see lanes.h)."""
    if life_bind(descriptor, by_signal):
        raise OSError("no thread to watch the parent process")
