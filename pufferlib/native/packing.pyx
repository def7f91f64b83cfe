# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""The hot path of emulation: values of nested spaces into rows, rows into actions, and what is
counted of each agent.

Nothing is looked up or recursed into at a step: `pufferlib.spaces` lays out a plan beforehand, one
entry a leaf. What does not fit a plan to the bit (another dtype, a key too many, no array) goes to
the plain Python function that came with it, which casts or says what is wrong.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_IsContiguous, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.dict cimport PyDict_GetItemWithError
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_Check
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from libc.math cimport NAN, isfinite
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memmove, memset

from collections import OrderedDict

import numpy as np

from pufferlib.native.core cimport Held


cdef bint take(object array, Py_buffer *buffer) except -1:
    """Get an array's memory, strided or not; False for what has none."""
    try:
        PyObject_GetBuffer(array, buffer, PyBUF_STRIDES)
    except (BufferError, TypeError, ValueError):
        return False
    return True


cdef inline bint alike(object array, object known) except -1:
    """Whether this is an array of the dtype `known`: the same one, or an equal one as pickles make."""
    cdef object dtype = getattr(array, "dtype", None)
    return dtype is known or (isinstance(dtype, np.dtype) and dtype == known)


cdef inline void store(char *to, Py_ssize_t size, int64_t value) noexcept:
    """Write an integer of `size` bytes."""
    if size == 8:
        (<int64_t *>to)[0] = value
    elif size == 4:
        (<int32_t *>to)[0] = <int32_t>value
    elif size == 2:
        (<int16_t *>to)[0] = <int16_t>value
    else:
        to[0] = <char>value


# ---------------------------------------------------------------- values into rows

cdef class Step:
    """One step of a leaf's path: into a dict of `count` keys, or into a tuple of `count` members."""

    cdef object key
    cdef Py_ssize_t index, count
    cdef bint named

    def __init__(self, key, Py_ssize_t count, bint named):
        self.key, self.count, self.named = key, count, named
        self.index = 0 if named else key

    cdef object into(self, object value):
        """The member of `value`, or None where it is not made like the space."""
        cdef PyObject *found = NULL
        if self.named:
            if type(value) is dict or type(value) is OrderedDict:
                if len(<dict>value) == self.count:
                    found = PyDict_GetItemWithError(value, self.key)
        elif type(value) is tuple:
            if len(<tuple>value) == self.count:
                return (<tuple>value)[self.index]
        elif type(value) is list:
            if len(<list>value) == self.count:
                return (<list>value)[self.index]
        return None if found is NULL else <object>found


cdef class Field:
    """One leaf: the steps that lead to it, and the part `view` of a row that it fills.

    `limits` is (lowest, highest) where an integer of Python, or of the field's own type, may stand
    for the value; `real` tells that a Python float may. `convert(value)` is called for the rest.
    """

    cdef tuple steps
    cdef object view, convert, dtype, kind
    cdef Py_buffer to
    cdef bint whole, real
    cdef int64_t low, high

    def __cinit__(self, tuple steps, view, tuple limits, bint real, convert):
        PyObject_GetBuffer(view, &self.to, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        self.steps, self.view, self.convert = steps, view, convert
        self.dtype, self.kind = np.dtype(view.dtype.str), view.dtype.type
        self.whole, self.real = limits is not None, real
        if self.whole:
            self.low, self.high = limits

    def __dealloc__(self):
        if self.to.obj is not None:
            PyBuffer_Release(&self.to)

    cdef bint write(self, object value) except -1:
        """Write this leaf of `value` → whether the value has it."""
        cdef Step step
        for step in self.steps:
            value = step.into(value)
            if value is None:
                return False
        if not (self.put(value) or self.copy(value)):
            self.view[...] = self.convert(value)
        return True

    cdef bint put(self, object number) except -1:
        """Write a single number → whether it is one that fits."""
        cdef int overflow = 0
        cdef int64_t whole
        if self.whole and (PyLong_Check(number) or type(number) is self.kind):
            whole = PyLong_AsLongLongAndOverflow(PyNumber_Index(number), &overflow)
            if not overflow and self.low <= whole <= self.high:
                store(<char *>self.to.buf, self.to.itemsize, whole)
                return True
        elif self.real and PyFloat_Check(number):
            (<double *>self.to.buf)[0] = PyFloat_AS_DOUBLE(number)
            return True
        return False

    cdef bint copy(self, object array) except -1:
        """Write an array → whether it is one of the right dtype and shape."""
        cdef Py_buffer given
        cdef bint fits
        if not alike(array, self.dtype) or not take(array, &given):
            return False
        try:
            fits = given.ndim == self.to.ndim and (
                not memcmp(given.shape, self.to.shape, given.ndim * sizeof(Py_ssize_t)))
            if fits and PyBuffer_IsContiguous(&given, c"C"):
                memmove(self.to.buf, given.buf, self.to.len)
            elif fits:
                self.view[...] = array
        finally:
            PyBuffer_Release(&given)
        return fits


cdef class Writer:
    """Writes values of one space into one row.

    `plain(value)` is called for those that are not made of plain dicts and tuples like the space.
    """

    cdef tuple fields
    cdef object plain

    def __init__(self, tuple fields, plain):
        self.fields, self.plain = fields, plain

    def write(self, value):
        """Write one value."""
        cdef Field field
        for field in self.fields:
            if not field.write(value):
                self.plain(value)
                return


# ---------------------------------------------------------------- rows into actions

cdef class Part:
    """One step of building an action; `done` holds what the parts before have built."""

    cdef object read(self, const void *row, list done):
        raise NotImplementedError


cdef class Choice(Part):
    """A choice, `begin` numbers into the row, as the number of type `kind` that it stands for."""

    cdef Py_ssize_t begin
    cdef object start, kind
    cdef list table

    def __init__(self, Py_ssize_t begin, n, start, kind):
        self.begin, self.start, self.kind = begin, start, kind
        self.table = [kind(start + choice) for choice in range(n)] if n <= 4096 else None

    cdef object read(self, const void *row, list done):
        cdef int64_t choice = (<const int64_t *>row)[self.begin]
        return self.kind(self.start + choice) if self.table is None else self.table[choice]


cdef class Choices(Part):
    """Several choices as an array like `template`, counted from `starts` (int64)."""

    cdef Py_ssize_t begin
    cdef object template
    cdef bytes starts

    def __init__(self, Py_ssize_t begin, template, bytes starts):
        self.begin, self.template, self.starts = begin, template, starts

    cdef object read(self, const void *row, list done):
        cdef const int64_t *choices = <const int64_t *>row + self.begin
        cdef const int64_t *starts = <const int64_t *><const char *>self.starts
        cdef Py_buffer to
        cdef Py_ssize_t k
        array = self.template.copy()
        PyObject_GetBuffer(array, &to, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        for k in range(to.len // to.itemsize):
            store(<char *>to.buf + k * to.itemsize, to.itemsize, choices[k] + starts[k])
        PyBuffer_Release(&to)
        return array


cdef class Reals(Part):
    """Real numbers as an array like `template`, clipped into `lows` and `highs` (float64)."""

    cdef Py_ssize_t begin
    cdef object template
    cdef bytes lows, highs

    def __init__(self, Py_ssize_t begin, template, bytes lows, bytes highs):
        self.begin, self.template, self.lows, self.highs = begin, template, lows, highs

    cdef object read(self, const void *row, list done):
        cdef const float *numbers = <const float *>row + self.begin
        cdef const double *lows = <const double *><const char *>self.lows
        cdef const double *highs = <const double *><const char *>self.highs
        cdef Py_buffer to
        cdef Py_ssize_t k
        cdef double number
        array = self.template.copy()
        PyObject_GetBuffer(array, &to, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        for k in range(to.len // to.itemsize):
            number = numbers[k]
            if number < lows[k]:
                number = lows[k]
            if number > highs[k]:
                number = highs[k]
            if to.itemsize == 4:
                (<float *>to.buf)[k] = <float>number
            else:
                (<double *>to.buf)[k] = number
        PyBuffer_Release(&to)
        return array


cdef class Group(Part):
    """A dict of `keys`, or a tuple if that is None, of the last `count` parts."""

    cdef tuple keys
    cdef Py_ssize_t count

    def __init__(self, keys, Py_ssize_t count):
        self.keys, self.count = keys, count

    cdef object read(self, const void *row, list done):
        cdef Py_ssize_t k, begin = len(done) - self.count
        cdef list members = done[begin:]
        cdef dict named = {}
        del done[begin:]
        if self.keys is None:
            return tuple(members)
        for k in range(self.count):
            named[self.keys[k]] = members[k]
        return named


cdef class Reader:
    """Makes an environment's action of a row of numbers.

    `parts` build it, members before their groups, from a row of one of `dtypes`: float32, or int32
    and int64 with choice k below `sizes[k]` (int64). `plain(row)` is called for any other row.
    """

    cdef tuple parts, dtypes
    cdef object plain
    cdef Py_ssize_t components
    cdef bytes sizes
    cdef int64_t *choices

    def __cinit__(self, tuple parts, tuple dtypes, Py_ssize_t components, sizes, plain):
        self.parts, self.dtypes, self.plain = parts, dtypes, plain
        self.components, self.sizes = components, sizes
        self.choices = <int64_t *>calloc(components + 1, sizeof(int64_t))
        if self.choices == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.choices)

    def read(self, row):
        """The action of one row."""
        cdef Py_buffer given
        action = None
        if self.take(row, 1, &given):
            try:
                action = self.build(<const char *>given.buf, given.itemsize)
            finally:
                PyBuffer_Release(&given)
        return self.plain(row) if action is None else action

    cdef bint take(self, object rows, Py_ssize_t count, Py_buffer *given) except -1:
        """Get the memory of `count` rows; False if they are not what the parts read."""
        for known in self.dtypes:
            if alike(rows, known):
                break
        else:
            return False
        if not take(rows, given):
            return False
        if (given.len == count * self.components * given.itemsize
                and PyBuffer_IsContiguous(given, c"C")):
            return True
        PyBuffer_Release(given)
        return False

    cdef object build(self, const char *row, Py_ssize_t itemsize):
        """The action of the row at this address; None if a choice is out of its range."""
        cdef Py_ssize_t k
        cdef const int64_t *sizes
        cdef Part part
        cdef list done
        if self.sizes is not None:
            sizes = <const int64_t *><const char *>self.sizes
            for k in range(self.components):
                self.choices[k] = ((<const int64_t *>row)[k] if itemsize == 8
                                   else (<const int32_t *>row)[k])
                if not 0 <= self.choices[k] < sizes[k]:
                    return None
            row = <const char *>self.choices
        if len(self.parts) == 1:
            part = self.parts[0]
            return part.read(row, None)
        done = []
        for part in self.parts:
            done.append(part.read(row, done))
        return done[0]


# ---------------------------------------------------------------- what is counted of each agent

cdef object look(object table, object key, object default):
    """`table.get(key, default)`."""
    cdef PyObject *found
    if type(table) is dict:
        found = PyDict_GetItemWithError(table, key)
        return default if found is NULL else <object>found
    return table.get(key, default)


cdef struct Slot:
    double total  # of the rewards of the episode under way
    int64_t length  # of it, in steps
    bint present


cdef class Slots:
    """The agents of one environment: their rewards, flags and masks, and the sums of each one's
    episode.

    `refuse(i, reward, step)` raises the error for a reward of agent i that is no finite number.
    """

    cdef set ended  # Agents that were flagged and have not returned.
    cdef tuple agents, held
    cdef Reader reader
    cdef object refuse, observations, final_observations
    cdef list write, write_final
    cdef float *rewards
    cdef uint8_t *terminals
    cdef uint8_t *truncations
    cdef uint8_t *masks
    cdef Slot *slots
    cdef Py_ssize_t count

    def __cinit__(self, tuple agents, Reader reader, refuse):
        self.agents, self.reader, self.refuse = agents, reader, refuse
        self.ended = set()
        self.count = len(agents)
        self.slots = <Slot *>calloc(self.count, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.slots)

    def bind(self, buf, writer):
        """Use the rows of `buf` from now on; `writer(row)` makes what writes a value into one."""
        cdef Held rewards = Held(buf.rewards, "rewards", "float32", (self.count,), True)
        cdef Held terminals = Held(buf.terminals, "terminals", "bool", (self.count,), True)
        cdef Held truncations = Held(buf.truncations, "truncations", "bool", (self.count,), True)
        cdef Held masks = Held(buf.masks, "masks", "bool", (self.count,), True)
        self.held = rewards, terminals, truncations, masks
        self.rewards = <float *>rewards.buffer.buf
        self.terminals = <uint8_t *>terminals.buffer.buf
        self.truncations = <uint8_t *>truncations.buffer.buf
        self.masks = <uint8_t *>masks.buffer.buf
        self.observations, self.final_observations = buf.observations, buf.final_observations
        self.write = [writer(self.observations[i, ...]) for i in range(self.count)]
        self.write_final = [writer(self.final_observations[i, ...]) for i in range(self.count)]

    def begin(self, observations):
        """The environment was reset: the agents that it observes enter → how many."""
        cdef Py_ssize_t i, present = 0
        self.ended.clear()
        for i in range(self.count):
            observation = look(observations, self.agents[i], None)
            if observation is None:
                self.vacate(i)
            else:
                self.enter(i, observation)
                present += 1
        return present

    def actions(self, rows):
        """The actions of the agents that are present, by agent, from rows [A, *D]."""
        cdef Py_buffer given
        cdef Py_ssize_t i
        cdef dict actions = {}
        cdef bint fits = self.reader.take(rows, self.count, &given)
        try:
            for i in range(self.count):
                if self.slots[i].present:
                    action = None
                    if fits:
                        action = self.reader.build(
                            <const char *>given.buf + i * self.reader.components * given.itemsize,
                            given.itemsize)
                    actions[self.agents[i]] = (
                        self.reader.plain(rows[i]) if action is None else action)
        finally:
            if fits:
                PyBuffer_Release(&given)
        return actions

    def step_alone(self, observation, reward, terminated, truncated):
        """Write what a step made of a lone agent → whether its episode is over."""
        cdef bint terminal = terminated
        cdef bint over = terminal or truncated
        self.pay(0, reward)
        self.terminals[0], self.truncations[0] = terminal, over and not terminal
        (self.write_final if over else self.write)[0](observation)
        return over

    def step(self, observations, rewards, terminations, truncations, live):
        """Write what a step made of each agent → the figures of those that leave, by agent."""
        cdef Py_ssize_t i
        cdef bint terminated, ended, goes_on = bool(live)
        cdef dict figures = {}
        self.clear()
        for i in range(self.count):
            agent = self.agents[i]
            observation = look(observations, agent, None)
            terminated = look(terminations, agent, False)
            ended = terminated or look(truncations, agent, False)
            if self.slots[i].present:
                self.pay(i, look(rewards, agent, 0.0 if observation is None else None))
                if goes_on and not ended and observation is not None:
                    self.write[i](observation)
                    continue
                figures[agent] = self.leave(i, terminated, observation)
                if ended:
                    self.ended.add(agent)
            elif observation is not None and not ended and agent in live:
                self.enter(i, observation)
        return figures

    def are_done(self, live):
        """Whether no agent is present, and none of `live` is still to come."""
        cdef Py_ssize_t i
        for i in range(self.count):
            if self.slots[i].present:
                return False
        return self.ended.issuperset(live)

    def figures(self, Py_ssize_t i):
        """Return and length of the episode of agent i."""
        return {"episode_return": self.slots[i].total, "episode_length": self.slots[i].length}

    cpdef int clear(self) except -1:
        """No reward and no flag for anyone."""
        memset(self.rewards, 0, self.count * sizeof(float))
        memset(self.terminals, 0, self.count)
        memset(self.truncations, 0, self.count)
        return 0

    cdef int pay(self, Py_ssize_t i, object reward) except -1:
        """Count a step of agent i and its reward."""
        cdef Slot *slot = &self.slots[i]
        cdef double number
        slot.length += 1
        try:
            number = reward
        except (TypeError, ValueError):
            number = NAN
        if not isfinite(<float>number):
            self.refuse(i, reward, slot.length)
        self.rewards[i] = <float>number
        slot.total += number
        return 0

    cpdef int enter(self, Py_ssize_t i, object observation) except -1:
        """Agent i begins an episode."""
        self.observations[i] = 0  # Also the bytes between its fields, which nothing writes.
        self.write[i](observation)
        self.slots[i].total, self.slots[i].length = 0, 0
        self.slots[i].present = self.masks[i] = True
        return 0

    cdef int vacate(self, Py_ssize_t i) except -1:
        """Agent i is absent."""
        self.observations[i] = 0
        self.slots[i].present = self.masks[i] = False
        return 0

    cdef object leave(self, Py_ssize_t i, bint terminated, object observation):
        """The episode of agent i is over → its figures."""
        if observation is None:
            self.final_observations[i] = 0
        else:
            self.write_final[i](observation)
        self.terminals[i], self.truncations[i] = terminated, not terminated
        self.vacate(i)
        return self.figures(i)
