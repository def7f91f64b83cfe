# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Loads environment libraries, steps them, and holds the hot loops of training.

Every array is taken through the buffer protocol and held for as long as its address is known to
C, so memory outlives its users; a wrong type, shape, layout or a read-only array is refused.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from difflib import get_close_matches

from pufferlib.exceptions import APIUsageError, EnvironmentSetupError


cdef extern from "stdlib.h":
    void *aligned_alloc(size_t alignment, size_t size)


cdef extern from "dlfcn.h":
    void *dlopen(const char *path, int flags)
    void *dlsym(void *handle, const char *symbol)
    char *dlerror()
    int RTLD_NOW
    int RTLD_LOCAL


cdef extern from "library.h":
    enum: PUFFER_ABI
    enum: PUFFER_MAX_KEYS
    enum: PUFFER_INT
    enum: PUFFER_BOOL
    ctypedef struct PufferSpec:
        int64_t state_bytes
        int32_t num_agents
        int32_t obs_rank
        int64_t obs_shape[4]
        double obs_low
        double obs_high
        int32_t action_components
        int32_t action_sizes[32]
        float action_low[32]
        float action_high[32]
        int32_t width
        int32_t height
        int32_t frames_per_second
        const char *keys[16]
    ctypedef struct PufferCanvas:
        uint8_t *pixels
        int32_t width
        int32_t height
    ctypedef struct PufferParam:
        const char *name
        int32_t kind
        double initial
        double low
        double high
        const char *doc
    ctypedef struct PufferLogField:
        const char *name
        const char *doc
    ctypedef struct PufferBatch:
        uint8_t *states
        const void *params
        PufferSpec spec
        int64_t obs_bytes
        void *observations
        void *final_observations
        const void *actions
        float *rewards
        uint8_t *terminals
        uint8_t *truncations
        uint8_t *masks
        float *returns
        int32_t *lengths
        float *logs
        const uint64_t *seeds
    ctypedef struct PufferLibrary:
        int32_t abi
        const char *name
        int32_t num_params
        int32_t num_log_fields
        const PufferParam *params
        const PufferLogField *log_fields
        int32_t params_bytes
        int32_t obs_kind
        int32_t obs_item_bytes
        int32_t continuous
        const char *(*describe)(const double *values, void *params, PufferSpec *spec)
        void (*reset)(const PufferBatch *batch, int64_t begin, int64_t end) noexcept nogil
        void (*step)(const PufferBatch *batch, int64_t begin, int64_t end) noexcept nogil
        void (*draw)(const void *state, const void *params, PufferCanvas *canvas) noexcept nogil


cdef extern from "pool.h" nogil:
    ctypedef struct PoolJob:
        int64_t next
        int64_t total
        int64_t chunk
        void (*run)(void *context, int64_t begin, int64_t end) noexcept nogil
        void *context
    ctypedef struct Pool:
        int num_threads
    Pool *pool_open(int num_threads, PoolJob *jobs, int num_jobs)
    void pool_submit(Pool *pool, PoolJob *job)
    void pool_wait(PoolJob *job)
    void pool_close(Pool *pool)


cdef extern from "kernels.h" nogil:
    int64_t check_discrete(const int32_t *actions, int64_t rows, int components,
                           const int32_t *sizes)
    int64_t copy_continuous(float *to, const float *source, int64_t rows, int components,
                            const float *low, const float *high)
    int64_t find_nonfinite(const float *values, int64_t count)
    void gae(const float *rewards, const float *values, const float *last_values,
             const float *bootstraps, const uint8_t *terminals, const uint8_t *truncations,
             const uint8_t *masks, float *advantages, int64_t steps, int64_t rows, float gamma,
             float lambda_)


cdef extern from "categorical.h" nogil:
    enum: LANES
    enum: MOST_COMPONENTS
    ctypedef struct Choices:
        int components
        int32_t *sizes
        int width
    ctypedef struct LossWeights:
        float clip
        float value_clip
        float value_weight
        float entropy_weight
    ctypedef struct Taken:
        const int32_t *actions
        const float *logprobs
        const float *advantages
        const float *values
        const float *returns
    void c_sample_discrete "sample_discrete" (
        const float *logits, int64_t stride, const float *noise, int64_t rows,
        const Choices *choices, int32_t *actions, float *logprobs, float *scratch)
    void ppo_loss(const float *logits, int64_t stride, const float *values, int64_t value_stride,
                  Taken taken, int64_t rows, const Choices *choices, LossWeights w,
                  float *grad_logits, float *grad_values, double *sums, float *scratch)


# ---------------------------------------------------------------- arrays

cdef dict FORMATS = {  # dtype -> (item size in bytes, *struct formats that mean it)
    "uint8": (1, "B"), "int8": (1, "b"), "int16": (2, "h"), "int32": (4, "i", "l"),
    "float32": (4, "f"), "bool": (1, "?"), "uint64": (8, "L", "Q"),
}
cdef tuple OBS_DTYPES = ("uint8", "int8", "int16", "int32", "float32")


cdef class Held:
    """A C-contiguous buffer, checked once and kept alive."""

    def __cinit__(self, array, str name, str dtype, tuple shape, bint writable):
        cdef int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT, i
        try:
            PyObject_GetBuffer(array, &self.buffer, flags | (PyBUF_WRITABLE if writable else 0))
        except (BufferError, TypeError, ValueError) as error:
            more = f" ({error})"
            raise self.refusal(array, name, dtype, shape, writable, more) from None
        self.taken = True
        form = (<bytes>self.buffer.format).decode() if self.buffer.format != NULL else "B"
        cdef tuple known = FORMATS[dtype]
        cdef bint fits = form in known and self.buffer.itemsize == known[0]
        fits = fits and self.buffer.ndim == len(shape)
        for i in range(self.buffer.ndim if fits else 0):
            fits = fits and self.buffer.shape[i] == shape[i]
        if not fits:
            raise self.refusal(array, name, dtype, shape, False, "")

    cdef refusal(self, array, name, dtype, shape, writable, more):
        return APIUsageError(
            f"{name}: expected a C-contiguous {dtype} array of shape {shape}"
            f"{' that can be written' if writable else ''}, got "
            f"{getattr(array, 'dtype', type(array).__name__)} {getattr(array, 'shape', '')}{more}"
        )

    def __dealloc__(self):
        if self.taken:
            PyBuffer_Release(&self.buffer)


# ---------------------------------------------------------------- libraries

cdef class Library:
    """A compiled environment: its parameters, log fields and the spaces they lead to.

    Raises `EnvironmentSetupError` if the file is no environment library or was compiled for
    another version of the contract.
    """

    cdef const PufferLibrary *c
    cdef readonly str path, name
    cdef readonly tuple params      # (name, 'int'|'float'|'bool', default, low, high, sentence)
    cdef readonly tuple log_fields  # (name, sentence)

    def __init__(self, path):
        self.path = str(path)
        cdef bytes raw = self.path.encode()
        cdef void *handle = dlopen(raw, RTLD_NOW | RTLD_LOCAL)
        if handle == NULL:
            raise EnvironmentSetupError(f"cannot load {self.path}: {dlerror().decode()}")
        cdef void *symbol = dlsym(handle, b"puffer_library")
        if symbol == NULL:
            raise EnvironmentSetupError(f"{self.path} is no environment library "
                                        "(it has no symbol puffer_library)")
        self.c = (<const PufferLibrary *(*)() noexcept>symbol)()
        if self.c.abi != PUFFER_ABI:
            raise EnvironmentSetupError(
                f"{self.path} was compiled for contract version {self.c.abi}, this library has "
                f"{PUFFER_ABI}; build the environment again (puffer build)")
        self.name = self.c.name.decode()
        kinds = {PUFFER_INT: "int", PUFFER_BOOL: "bool"}
        casts = {PUFFER_INT: int, PUFFER_BOOL: bool}
        self.params = tuple(
            (
                self.c.params[i].name.decode(),
                kinds.get(self.c.params[i].kind, "float"),
                casts.get(self.c.params[i].kind, float)(self.c.params[i].initial),
                self.c.params[i].low,
                self.c.params[i].high,
                self.c.params[i].doc.decode(),
            )
            for i in range(self.c.num_params)
        )
        self.log_fields = tuple(
            (self.c.log_fields[i].name.decode(), self.c.log_fields[i].doc.decode())
            for i in range(self.c.num_log_fields)
        )

    def check(self, dict values):
        """All parameters as a dict: the given values, checked, and defaults for the rest.

        Raises `APIUsageError` naming the nearest parameter, or the range that was left.
        """
        known = {p[0]: p for p in self.params}
        for key in values:
            if key not in known:
                near = get_close_matches(str(key), list(known), 1, 0.0)
                raise APIUsageError(
                    f"{self.name} has no parameter {key!r}"
                    + (f"; did you mean {near[0]!r}? It has: {', '.join(known)}" if near
                       else "; it has none"))
        result = {}
        for name, kind, initial, low, high, _ in self.params:
            value = values.get(name, initial)
            fits = isinstance(value, bool) if kind == "bool" else (
                not isinstance(value, bool) and hasattr(value, "__float__"))
            if fits and kind == "int":
                fits = float(value).is_integer()
            if not fits:
                raise APIUsageError(f"{self.name}: {name} = {value!r}, expected {kind}")
            if not low <= float(value) <= high:
                raise APIUsageError(f"{self.name}: {name} = {value!r}, expected {kind} from "
                                    f"{low:g} to {high:g}")
            result[name] = {"int": int, "float": float, "bool": bool}[kind](value)
        return result


cdef class Params:
    """One checked set of parameters of a library and the specification that follows from it."""

    cdef readonly Library library
    cdef readonly dict values
    cdef PufferSpec spec
    cdef void *bytes_

    def __cinit__(self, Library library, dict values=None):
        self.library = library
        self.values = library.check(values or {})
        self.bytes_ = calloc(1, library.c.params_bytes + 8)
        cdef double *numbers = <double *>calloc(library.c.num_params + 1, sizeof(double))
        if self.bytes_ == NULL or numbers == NULL:
            free(numbers)
            raise MemoryError()
        for i, value in enumerate(self.values.values()):
            numbers[i] = value
        cdef const char *error = library.c.describe(numbers, self.bytes_, &self.spec)
        free(numbers)
        if error != NULL:
            raise APIUsageError(f"{library.name}: {error.decode()} (got "
                                + ", ".join(f"{k} = {v}" for k, v in self.values.items()) + ")")

    def __dealloc__(self):
        free(self.bytes_)

    @property
    def num_agents(self):
        return self.spec.num_agents

    @property
    def frames_per_second(self):
        return self.spec.frames_per_second

    @property
    def canvas_shape(self):
        """(height, width, 3) of a picture."""
        return (self.spec.height, self.spec.width, 3)

    @property
    def observation(self):
        """(dtype, shape, low, high) of one row."""
        return (OBS_DTYPES[self.library.c.obs_kind],
                tuple(self.spec.obs_shape[i] for i in range(self.spec.obs_rank)),
                self.spec.obs_low, self.spec.obs_high)

    @property
    def action(self):
        """('discrete', sizes) or ('continuous', lows, highs), one entry a component."""
        cdef int n = self.spec.action_components
        if self.library.c.continuous:
            return ("continuous", [self.spec.action_low[i] for i in range(n)],
                    [self.spec.action_high[i] for i in range(n)])
        return ("discrete", [self.spec.action_sizes[i] for i in range(n)])

    @property
    def keys(self):
        """Key name → action, for a keyboard player."""
        return {self.spec.keys[i].decode(): i for i in range(PUFFER_MAX_KEYS)
                if self.spec.keys[i] != NULL}


# ---------------------------------------------------------------- worlds

cdef class Rows:
    """A checked set of arrays that one `send` fills: observations, rewards and both flags."""

    cdef object owner
    cdef readonly object observations, rewards, terminals, truncations
    cdef tuple held
    cdef PufferBatch batch


cdef struct Slice:
    const PufferLibrary *library
    PufferBatch batch
    bint resetting


cdef void run_slice(void *context, int64_t begin, int64_t end) noexcept nogil:
    cdef Slice *s = <Slice *>context
    if s.resetting:
        s.library.reset(&s.batch, begin, end)
    else:
        s.library.step(&s.batch, begin, end)


cdef enum Phase:
    MUST_RESET, MUST_RECV, MUST_SEND, CLOSED


cdef dict PHASES = {MUST_RESET: "reset or async_reset", MUST_RECV: "recv", MUST_SEND: "send",
                    CLOSED: "nothing (it is closed)"}


cdef class Worlds:
    """`num_envs` worlds of one environment, stepped in slices of `batch_size` by a thread pool.

    `buffers` (see pufferlib.buffers) has a row for each agent. With one slice, `send` steps and
    `recv` only hands out the views; with more, `send` starts the step of the slice received last
    and `recv` waits for the next one in turn. `num_threads` counts the caller where it waits.
    """

    cdef readonly Params params
    cdef readonly int64_t num_envs, batch_size
    cdef readonly int num_threads
    cdef int64_t slice_rows, row_actions
    cdef int num_slices, current
    cdef Phase phase
    cdef object buffers
    cdef list slice_views, slice_ids
    cdef tuple held
    cdef uint8_t *memory
    cdef int64_t saved_bytes  # of the memory; behind them lie the actions of the next step
    cdef int32_t *actions
    cdef float *logs
    cdef int64_t log_fields
    cdef uint64_t *seeds
    cdef Slice *slices
    cdef PoolJob *jobs
    cdef Pool *pool
    cdef bint inline_

    def __init__(self, Params params, buffers, int64_t num_envs, int64_t batch_size,
                 int num_threads, agent_ids):
        cdef int64_t rows = num_envs * params.spec.num_agents
        cdef int64_t k
        cdef int64_t sizes[6]
        dtype, shape = params.observation[:2]
        self.params, self.num_envs, self.batch_size = params, num_envs, batch_size
        self.num_threads = num_threads
        self.num_slices = <int>(num_envs // batch_size)
        self.slice_rows = batch_size * params.spec.num_agents
        self.row_actions = params.spec.action_components
        self.log_fields = 3 + params.library.c.num_log_fields
        self.phase = MUST_RESET
        self.buffers = buffers

        sizes[0] = num_envs * params.spec.state_bytes
        sizes[1] = rows * sizeof(float)
        sizes[2] = rows * sizeof(int32_t)
        sizes[3] = num_envs * self.log_fields * sizeof(float)
        sizes[4] = num_envs * sizeof(uint64_t)
        sizes[5] = rows * self.row_actions * 4
        for k in range(6):
            sizes[k] = (sizes[k] + 63) // 64 * 64 + 5 * 64  # The gap of buffers.GAP.
            self.saved_bytes += sizes[k] if k < 5 else 0
        self.memory = <uint8_t *>aligned_alloc(64, self.saved_bytes + sizes[5])
        self.slices = <Slice *>calloc(self.num_slices, sizeof(Slice))
        self.jobs = <PoolJob *>aligned_alloc(64, self.num_slices * sizeof(PoolJob))
        if self.memory == NULL or self.slices == NULL or self.jobs == NULL:
            raise MemoryError(f"no memory for {num_envs} worlds of {params.spec.state_bytes} bytes")
        memset(self.memory, 0, self.saved_bytes + sizes[5])
        memset(self.jobs, 0, self.num_slices * sizeof(PoolJob))

        final = Held(buffers.final_observations, "final_observations", dtype, (rows, *shape), True)
        masks = Held(buffers.masks, "masks", "bool", (rows,), True)
        self.held = (final, masks)
        cdef PufferBatch whole
        memset(&whole, 0, sizeof(PufferBatch))
        whole.params, whole.spec = params.bytes_, params.spec
        whole.states = self.memory
        whole.returns = <float *>(self.memory + sizes[0])
        whole.lengths = <int32_t *>(self.memory + sizes[0] + sizes[1])
        whole.logs = self.logs = <float *>(self.memory + sizes[0] + sizes[1] + sizes[2])
        whole.seeds = self.seeds = <uint64_t *>(<uint8_t *>self.logs + sizes[3])
        whole.actions = self.actions = <int32_t *>(<uint8_t *>self.seeds + sizes[4])
        whole.final_observations = (<Held>final).buffer.buf
        whole.masks = <uint8_t *>(<Held>masks).buffer.buf
        whole.obs_bytes = (<Held>final).buffer.len // rows
        self.slice_views, self.slice_ids = [], []
        for k in range(self.num_slices):
            self.fill_slice(&self.slices[k], &whole, params.library.c, k)
            own = buffers.rows(k * self.slice_rows, (k + 1) * self.slice_rows)
            self.slice_ids.append(agent_ids[k * self.slice_rows:(k + 1) * self.slice_rows])
            self.slice_views.append([None, own])
        helpers = num_threads - 1 if self.num_slices == 1 else num_threads
        self.inline_ = helpers <= 0
        self.pool = pool_open(helpers, self.jobs, self.num_slices)
        if self.pool == NULL:
            raise MemoryError("no memory for the thread pool")

    cdef void fill_slice(self, Slice *s, PufferBatch *whole, const PufferLibrary *library, int64_t k):
        cdef int64_t world = k * self.batch_size, row = k * self.slice_rows
        s.library = library
        s.batch = whole[0]
        s.batch.states += world * whole.spec.state_bytes
        s.batch.logs += world * self.log_fields
        s.batch.seeds += world
        s.batch.actions = self.actions + row * self.row_actions
        s.batch.returns += row
        s.batch.lengths += row
        s.batch.masks += row
        s.batch.final_observations = <uint8_t *>whole.final_observations + row * whole.obs_bytes
        self.jobs[k].total = self.jobs[k].next = self.batch_size
        self.jobs[k].chunk = max(1, self.batch_size // (4 * max(1, self.num_threads)))
        self.jobs[k].run = run_slice
        self.jobs[k].context = s

    def __dealloc__(self):
        pool_close(self.pool)
        free(self.memory)
        free(self.slices)
        free(self.jobs)

    def rows(self, observations, rewards, terminals, truncations):
        """Check arrays of one batch as a place for `send(actions, out)` to write to → Rows."""
        dtype, shape = self.params.observation[:2]
        cdef int64_t n = self.slice_rows
        cdef Rows rows = Rows.__new__(Rows)
        cdef Held a = Held(observations, "observations", dtype, (n, *shape), True)
        cdef Held b = Held(rewards, "rewards", "float32", (n,), True)
        cdef Held c = Held(terminals, "terminals", "bool", (n,), True)
        cdef Held d = Held(truncations, "truncations", "bool", (n,), True)
        rows.owner = self
        rows.observations, rows.rewards = observations, rewards
        rows.terminals, rows.truncations = terminals, truncations
        rows.held = (a, b, c, d)
        rows.batch.observations = a.buffer.buf
        rows.batch.rewards = <float *>b.buffer.buf
        rows.batch.terminals = <uint8_t *>c.buffer.buf
        rows.batch.truncations = <uint8_t *>d.buffer.buf
        return rows

    cdef void aim(self, Slice *s, Rows rows):
        s.batch.observations = rows.batch.observations
        s.batch.rewards = rows.batch.rewards
        s.batch.terminals = rows.batch.terminals
        s.batch.truncations = rows.batch.truncations

    cdef int aim_home(self) except -1:
        """Let every slice write to the vector's own rows, the first one being due."""
        cdef int k
        for k in range(self.num_slices):
            own = self.slice_views[k][1]
            self.slice_views[k][0] = self.rows(own.observations, own.rewards, own.terminals,
                                               own.truncations)
            self.aim(&self.slices[k], self.slice_views[k][0])
        self.current = 0
        self.phase = MUST_RECV
        return 0

    cdef int start(self, int k, bint resetting) except -1:
        self.slices[k].resetting = resetting
        if self.inline_:
            with nogil:
                run_slice(&self.slices[k], 0, self.batch_size)
        else:
            pool_submit(self.pool, &self.jobs[k])
            if self.num_slices == 1:
                with nogil:
                    pool_wait(&self.jobs[k])
        return 0

    cdef int expect(self, Phase phase) except -1:
        if self.phase != phase:
            raise APIUsageError(f"{PHASES[phase]} was called, but {PHASES[self.phase]} is expected")
        return 0

    def start_reset(self, seeds):
        """Begin a reset of every world, world k from seeds[k] (uint64); `recv` comes next."""
        if self.phase == CLOSED:
            self.expect(MUST_RESET)
        cdef Held held = Held(seeds, "seeds", "uint64", (self.num_envs,), False)
        cdef int k
        self.wait()
        memcpy(self.seeds, held.buffer.buf, self.num_envs * sizeof(uint64_t))
        self.aim_home()
        for k in range(self.num_slices):
            self.start(k, True)

    def send(self, actions, Rows out=None):
        """Step the batch received last with actions [agents_per_batch, *D].

        Results go to `out` (from `rows`), else to the vector's own buffers. Discrete actions are
        refused outside their range; continuous ones are cut to their bounds, NaN is refused.
        """
        self.expect(MUST_SEND)
        cdef Slice *s = &self.slices[self.current]
        cdef Py_buffer view
        cdef int64_t bad
        cdef PufferSpec *spec = &s.batch.spec
        cdef void *own = <void *>s.batch.actions
        cdef bint continuous = self.params.library.c.continuous
        try:
            PyObject_GetBuffer(actions, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
        except (BufferError, TypeError, ValueError):
            return self.send(self.convert_actions(actions), out)
        try:
            if (view.len != self.slice_rows * self.row_actions * 4
                    or view.itemsize != 4
                    or view.format[0] != (c"f" if continuous else c"i")):
                actions = self.convert_actions(actions)
                return self.send(actions, out)
            if continuous:
                bad = copy_continuous(<float *>s.batch.actions, <const float *>view.buf,
                                      self.slice_rows, <int>self.row_actions, spec.action_low,
                                      spec.action_high)
            else:
                bad = check_discrete(<const int32_t *>view.buf, self.slice_rows,
                                     <int>self.row_actions, spec.action_sizes)
            if bad >= 0:
                self.refuse_row(actions, bad)
            if out is None:
                out = self.slice_views[self.current][0]
            elif out.owner is not self:
                raise APIUsageError(
                    "out was made by another vector; make it with this one's rows()")
            else:
                self.slice_views[self.current][0] = out
            self.aim(s, out)
            if not continuous and self.num_slices > 1:
                memcpy(own, view.buf, view.len)  # The step may outlast this call,
            elif not continuous:
                s.batch.actions = view.buf  # or ends in it.
            self.start(self.current, False)
            s.batch.actions = own
        finally:
            PyBuffer_Release(&view)
        self.current = (self.current + 1) % self.num_slices
        self.phase = MUST_RECV

    def convert_actions(self, actions):
        """Actions of another integer or float type, or strided, as `send` wants them."""
        import numpy as np

        array = np.asarray(actions)
        kind, dtype = ("f", np.float32) if self.params.library.c.continuous else ("iu", np.int32)
        if array.dtype.kind not in kind or array.size != self.slice_rows * self.row_actions:
            raise APIUsageError(
                f"actions: expected {np.dtype(dtype)} of {self.slice_rows} rows and "
                f"{self.row_actions} component(s), got {array.dtype} {array.shape}")
        if kind == "iu" and array.size and not -2**31 <= array.min() <= array.max() < 2**31:
            raise APIUsageError(f"actions: {array.max()} is outside every discrete space")
        return np.ascontiguousarray(array, dtype)

    def refuse_row(self, actions, row):
        kind, *bounds = self.params.action
        raise APIUsageError(
            f"action {actions[row]} of row {row} (environment {row // self.params.spec.num_agents}"
            f" of the batch) is outside its space: {kind} {bounds[0]}")

    def recv(self):
        """Wait for the batch that is due → (observations, rewards, terminals, truncations, infos,
        agent_ids, masks); infos is empty (see `episodes`)."""
        self.expect(MUST_RECV)
        if not self.inline_:
            with nogil:
                pool_wait(&self.jobs[self.current])
        self.phase = MUST_SEND
        views = <list>self.slice_views[self.current]
        cdef Rows rows = <Rows>views[0]
        return (rows.observations, rows.rewards, rows.terminals, rows.truncations, [],
                self.slice_ids[self.current], views[1].masks)

    def batches(self):
        """What the coming `recv` of each slice returns, once no step is under way."""
        self.wait()
        return [(v[0].observations, v[0].rewards, v[0].terminals, v[0].truncations, [], ids,
                 v[1].masks) for v, ids in zip(self.slice_views, self.slice_ids)]

    @property
    def final_observations(self):
        """Last observations of episodes that ended in the batch received last [rows, *O]."""
        return self.slice_views[self.current][1].final_observations

    def wait(self):
        """Wait until no step is under way."""
        cdef int k
        if self.inline_:
            return
        for k in range(self.num_slices):
            with nogil:
                pool_wait(&self.jobs[k])

    def shut(self):
        """Stop the threads; anything but another `shut` is refused from now on."""
        if self.phase != CLOSED:
            self.wait()
            self.phase = CLOSED
            pool_close(self.pool)
            self.pool = NULL

    def drain(self):
        """(env index, episodes, return sum, length sum, *field sums) of each world in which an
        episode ended since the last call."""
        self.wait()
        cdef int64_t k, i, n = self.log_fields
        cdef float *log
        result = []
        for k in range(self.num_envs):
            log = self.logs + k * n
            if log[0] > 0:
                result.append((k, *[log[i] for i in range(n)]))
                memset(log, 0, n * sizeof(float))
        return result

    def drain_sums(self):
        """Sums over all worlds since the last call: [episodes, return, length, *fields]."""
        self.wait()
        cdef int64_t k, i, n = self.log_fields
        cdef double sums[64]
        memset(sums, 0, sizeof(sums))
        for k in range(self.num_envs):
            if self.logs[k * n] > 0:
                for i in range(n):
                    sums[i] += self.logs[k * n + i]
        memset(self.logs, 0, self.num_envs * n * sizeof(float))
        return [sums[i] for i in range(n)]

    def get_state(self):
        """Everything that the next step depends on but the rows themselves, as bytes."""
        self.wait()
        return <bytes>(<char *>self.memory)[:self.saved_bytes]

    def set_state(self, state):
        """Continue from what `get_state` of an equal vector returned; `recv` comes next, and
        returns the vector's own rows, which the caller restores."""
        if self.phase == CLOSED:
            self.expect(MUST_RECV)
        self.wait()
        if len(state) != self.saved_bytes:
            raise APIUsageError(f"a state of {len(state)} bytes does not fit {self.num_envs} worlds "
                                f"that take {self.saved_bytes}")
        cdef const uint8_t[::1] view = state
        memcpy(self.memory, &view[0], self.saved_bytes)
        self.aim_home()

    def world_state(self, int64_t world):
        """The bytes of one world's state struct."""
        self.check_world(world)
        cdef int64_t size = self.params.spec.state_bytes
        return <bytes>(<char *>self.memory + world * size)[:size]

    def check_world(self, int64_t world):
        if not 0 <= world < self.num_envs:
            raise APIUsageError(f"world {world} does not exist; there are {self.num_envs}")
        self.wait()

    def draw(self, int64_t world, pixels):
        """Paint one world into pixels [height, width, 3] uint8."""
        self.check_world(world)
        cdef Held held = Held(pixels, "pixels", "uint8", self.params.canvas_shape, True)
        cdef PufferCanvas canvas
        canvas.pixels = <uint8_t *>held.buffer.buf
        canvas.width, canvas.height = self.params.spec.width, self.params.spec.height
        cdef void *state = self.memory + world * self.params.spec.state_bytes
        with nogil:
            self.slices[0].library.draw(state, self.params.bytes_, &canvas)


# ---------------------------------------------------------------- numerics

def advantages(rewards, values, last_values, bootstraps, terminals, truncations, masks, out,
               double gamma, double lambda_):
    """Generalized advantage estimation into `out`; arrays [T, A], `last_values` [A] (kernels.h)."""
    shape = tuple(rewards.shape)
    cdef Held r = Held(rewards, "rewards", "float32", shape, False)
    cdef Held v = Held(values, "values", "float32", shape, False)
    cdef Held l = Held(last_values, "last_values", "float32", shape[1:], False)
    cdef Held b = Held(bootstraps, "bootstraps", "float32", shape, False)
    cdef Held e = Held(terminals, "terminals", "bool", shape, False)
    cdef Held u = Held(truncations, "truncations", "bool", shape, False)
    cdef Held m = Held(masks, "masks", "bool", shape, False)
    cdef Held o = Held(out, "out", "float32", shape, True)
    with nogil:
        gae(<float *>r.buffer.buf, <float *>v.buffer.buf, <float *>l.buffer.buf,
            <float *>b.buffer.buf, <uint8_t *>e.buffer.buf, <uint8_t *>u.buffer.buf,
            <uint8_t *>m.buffer.buf, <float *>o.buffer.buf, r.buffer.shape[0], r.buffer.shape[1],
            <float>gamma, <float>lambda_)


cdef float *plan_choices(Choices *choices, list sizes) except NULL:
    """Fill in `choices` → scratch for a kernel, which the caller frees."""
    cdef int k
    choices.components, choices.width = <int>len(sizes), 0
    if choices.components > MOST_COMPONENTS:
        raise APIUsageError(f"{len(sizes)} components of an action; expected at most 32")
    for k in range(choices.components):
        choices.sizes[k] = sizes[k]
        choices.width += choices.sizes[k]
    cdef float *scratch = <float *>calloc(2 * choices.width * LANES, sizeof(float))
    if scratch == NULL:
        raise MemoryError
    return scratch


def sample_discrete(uintptr_t logits, int64_t stride, noise, list sizes, actions, logprobs):
    """Sample B rows of D discrete components of `sizes` choices, P in all, with Gumbel `noise`
    [B, P] into `actions` [B, D] int32 and their log-probabilities into `logprobs` [B].

    `logits` is the address of float32 rows `stride` elements apart.
    """
    cdef int64_t rows = len(logprobs)
    cdef Choices choices
    cdef float *scratch = plan_choices(&choices, sizes)
    cdef Held n, a, l
    try:
        n = Held(noise, "noise", "float32", (rows, choices.width), False)
        a = Held(actions, "actions", "int32", (rows, choices.components), True)
        l = Held(logprobs, "logprobs", "float32", (rows,), True)
        with nogil:
            c_sample_discrete(<float *>logits, stride, <float *>n.buffer.buf, rows, &choices,
                              <int32_t *>a.buffer.buf, <float *>l.buffer.buf, scratch)
    finally:
        free(scratch)


def discrete_loss(uintptr_t logits, int64_t stride, uintptr_t values, int64_t value_stride, actions,
                  old_logprobs, advantages, old_values, returns, grad_logits, grad_values,
                  list sizes, float clip, float value_clip, float value_weight,
                  float entropy_weight):
    """The PPO loss of B rows of discrete actions, and its gradient into `grad_logits` [B, P] and
    `grad_values` [B] → means of (policy loss, value loss, entropy, divergence, clipped share).

    `logits` and `values` are addresses of float32 rows `stride` and `value_stride` elements apart.
    """
    cdef int64_t rows = len(grad_values)
    cdef tuple line = (rows,)
    cdef Choices choices
    cdef Taken taken
    cdef LossWeights weights
    cdef double sums[5]
    cdef float *scratch = plan_choices(&choices, sizes)
    cdef Held a, o, d, v, r, gl, gv
    weights.clip, weights.value_clip = clip, value_clip
    weights.value_weight, weights.entropy_weight = value_weight, entropy_weight
    try:
        a = Held(actions, "actions", "int32", (rows, choices.components), False)
        o = Held(old_logprobs, "old_logprobs", "float32", line, False)
        d = Held(advantages, "advantages", "float32", line, False)
        v = Held(old_values, "old_values", "float32", line, False)
        r = Held(returns, "returns", "float32", line, False)
        gl = Held(grad_logits, "grad_logits", "float32", (rows, choices.width), True)
        gv = Held(grad_values, "grad_values", "float32", line, True)
        taken.actions, taken.logprobs = <int32_t *>a.buffer.buf, <float *>o.buffer.buf
        taken.advantages, taken.values = <float *>d.buffer.buf, <float *>v.buffer.buf
        taken.returns = <float *>r.buffer.buf
        with nogil:
            ppo_loss(<float *>logits, stride, <float *>values, value_stride, taken, rows, &choices,
                     weights, <float *>gl.buffer.buf, <float *>gv.buffer.buf, sums, scratch)
    finally:
        free(scratch)
    return [sums[k] for k in range(5)]


def first_nonfinite(values):
    """Flat index of the first NaN or infinity in a float32 array, or -1."""
    cdef Held v = Held(values, "values", "float32", tuple(values.shape), False)
    cdef int64_t index
    with nogil:
        index = find_nonfinite(<float *>v.buffer.buf, v.buffer.len // 4)
    return index
