"""What other compiled modules use of `core`."""


cdef class Held:
    cdef Py_buffer buffer
    cdef bint taken
    cdef refusal(self, array, name, dtype, shape, writable, more)
