/* A loss and the sum of squares of gradients in host memory, read by address: one call instead of some thirty. And the addresses of
   gradients on a GPU: one call instead of several for each tensor; and the start of the kernel that reads them.

   Optional: without it (no compiler, an older torch) the same number comes from torch calls. A gradient is looked at through
   DLPack's exchange table, which torch offers on its tensor class; whatever is not a plain, dense tensor of a known type is left
   to those calls. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>

/* The parts of DLPack 1.x that are used here; its layout is fixed by that version. */
typedef struct { uint32_t major, minor; } Version;
typedef struct { int32_t type, id; } Device;
typedef struct { uint8_t code, bits; uint16_t lanes; } DataType;
typedef struct {
    void *data;
    Device device;
    int32_t ndim;
    DataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} View;
typedef struct Table {
    Version version;
    struct Table *older;
    void *allocate, *owned_from_object, *owned_to_object;
    int (*view_of_object)(void *object, View *view);
} Table;

enum { HOST = 1, CUDA = 2, FLOAT = 2, BFLOAT = 4, LANES = 16, BLOCK = 4096 };

static PyObject *name_of_grad;
static PyObject *tensor_class; /* these three are set by `use` */
static const Table *table;
static int64_t most_values;

/* Lanes that do not wait for each other, so that the compiler can use vectors; blocks, so that small values are not lost. */
static double sum_of_squares(const float *values, int64_t count) {
    double total = 0.0;
    while (count > 0) {
        int64_t block = count < BLOCK ? count : BLOCK, at = 0;
        float lanes[LANES] = {0};
        for (; at + LANES <= block; at += LANES)
            for (int lane = 0; lane < LANES; lane++) lanes[lane] += values[at + lane] * values[at + lane];
        for (; at < block; at++) lanes[at % LANES] += values[at] * values[at];
        for (int lane = 0; lane < LANES; lane++) total += lanes[lane];
        values += block;
        count -= block;
    }
    return total;
}

/* Number of values if they fill their memory in order without a gap, else -1. */
static int64_t dense_size(const View *view) {
    int64_t size = 1;
    for (int32_t axis = view->ndim - 1; axis >= 0; axis--) {
        if (view->strides && view->shape[axis] != 1 && view->strides[axis] != size) return -1;
        size *= view->shape[axis];
    }
    return size;
}

/* Looks at a plain tensor of single precision on the host; gives its number of values, or -1 for anything else. */
static int64_t look(PyObject *tensor, View *view) {
    if ((PyObject *)Py_TYPE(tensor) != tensor_class) return -1;
    if (table->view_of_object(tensor, view) != 0) {
        PyErr_Clear();
        return -1;
    }
    if (view->device.type != HOST || view->dtype.code != FLOAT || view->dtype.bits != 32 || view->dtype.lanes != 1) return -1;
    return dense_size(view);
}

/* The same for a batch of images with the channels last in memory. */
static int64_t channels_last_size(const View *view) {
    static const int order[4] = {1, 3, 2, 0};
    int64_t size = 1;
    if (view->ndim != 4 || !view->strides) return -1;
    for (int i = 0; i < 4; i++) {
        int axis = order[i];
        if (view->shape[axis] != 1 && view->strides[axis] != size) return -1;
        size *= view->shape[axis];
    }
    return size;
}

/* The type of a tensor as the kernel that reads it counts them; -1 for one that it cannot read. */
static int kind_of(const View *view) {
    if (view->dtype.lanes != 1) return -1;
    if (view->dtype.code == BFLOAT && view->dtype.bits == 16) return 1;
    if (view->dtype.code != FLOAT) return -1;
    return view->dtype.bits == 32 ? 0 : view->dtype.bits == 16 ? 2 : -1;
}

static const float *values_of(const View *view) { return (const float *)((const char *)view->data + view->byte_offset); }

static PyObject *use(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    (void)module;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "use(tensor class, its exchange table, most values)");
        return NULL;
    }
    const Table *offered = PyCapsule_GetPointer(given[1], "dlpack_exchange_api");
    most_values = PyLong_AsLongLong(given[2]);
    if (PyErr_Occurred()) return NULL;
    if (offered->version.major != 1 || !offered->view_of_object) Py_RETURN_FALSE;
    Py_INCREF(given[0]);
    Py_XSETREF(tensor_class, given[0]);
    table = offered;
    Py_RETURN_TRUE;
}

static PyObject *scalar(PyObject *module, PyObject *tensor) {
    (void)module;
    View view;
    if (!table || look(tensor, &view) != 1) Py_RETURN_NONE;
    return PyFloat_FromDouble(*values_of(&view));
}

static PyObject *norm(PyObject *module, PyObject *parameters) {
    (void)module;
    if (!PyList_Check(parameters)) {
        PyErr_SetString(PyExc_TypeError, "norm(list of parameters)");
        return NULL;
    }
    if (!table) Py_RETURN_NONE;
    int64_t left = most_values;
    double total = 0.0;
    Py_ssize_t seen = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); i++) {
        PyObject *gradient = PyObject_GetAttr(PyList_GET_ITEM(parameters, i), name_of_grad);
        if (!gradient) return NULL;
        int there = gradient != Py_None;
        View view;
        int64_t size = there ? look(gradient, &view) : 0;
        left -= size;
        if (there && size >= 0 && left >= 0) total += sum_of_squares(values_of(&view), size);
        Py_DECREF(gradient); /* the parameter still holds it */
        if (size < 0 || left < 0) Py_RETURN_NONE;
        seen += there;
    }
    return PyFloat_FromDouble(seen ? sqrt(total) : -1.0);
}

/* Whether a gradient is a dense tensor on this GPU, of this size and kind; its address then. */
static int fits(PyObject *gradient, long gpu, int64_t size, int32_t kind, int64_t *address) {
    View view;
    if ((PyObject *)Py_TYPE(gradient) != tensor_class) return 0;
    if (table->view_of_object(gradient, &view) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (view.device.type != CUDA || view.device.id != gpu || kind_of(&view) != kind) return 0;
    if (dense_size(&view) != size && channels_last_size(&view) != size) return 0;
    *address = (int64_t)(intptr_t)((char *)view.data + view.byte_offset);
    return 1;
}

static PyObject *addresses(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    (void)module;
    if (count != 5 || !PyList_Check(given[0])) {
        PyErr_SetString(PyExc_TypeError, "addresses(parameters, GPU, sizes, kinds, addresses)");
        return NULL;
    }
    long gpu = PyLong_AsLong(given[1]);
    if (PyErr_Occurred()) return NULL;
    if (!table) Py_RETURN_FALSE;
    Py_buffer sizes, kinds, out;
    if (PyObject_GetBuffer(given[2], &sizes, PyBUF_SIMPLE) != 0) return NULL;
    if (PyObject_GetBuffer(given[3], &kinds, PyBUF_SIMPLE) != 0) {
        PyBuffer_Release(&sizes);
        return NULL;
    }
    if (PyObject_GetBuffer(given[4], &out, PyBUF_WRITABLE) != 0) {
        PyBuffer_Release(&sizes);
        PyBuffer_Release(&kinds);
        return NULL;
    }
    Py_ssize_t length = PyList_GET_SIZE(given[0]);
    int good = sizes.len == 8 * length && kinds.len == 4 * length && out.len == 8 * length, failed = 0;
    for (Py_ssize_t i = 0; good && i < length; i++) {
        PyObject *gradient = PyObject_GetAttr(PyList_GET_ITEM(given[0], i), name_of_grad);
        if (!gradient) {
            failed = 1;
            break;
        }
        good = gradient != Py_None &&
               fits(gradient, gpu, ((int64_t *)sizes.buf)[i], ((int32_t *)kinds.buf)[i], (int64_t *)out.buf + i);
        Py_DECREF(gradient);
    }
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&kinds);
    PyBuffer_Release(&out);
    if (failed) return NULL;
    return PyBool_FromLong(good);
}

/* cuLaunchKernel of the CUDA driver, by its address: through ctypes the same call takes some microseconds more. */
typedef int (*Launch)(void *function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned shared,
                      void *stream, void **arguments, void **extra);

static PyObject *launch(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    (void)module;
    if (count != 6) {
        PyErr_SetString(PyExc_TypeError, "launch(address of cuLaunchKernel, function, blocks, threads, stream, arguments)");
        return NULL;
    }
    void *pointers[6];
    unsigned long numbers[6];
    for (int i = 0; i < 6; i++) {
        if (i == 2 || i == 3) numbers[i] = PyLong_AsUnsignedLong(given[i]);
        else pointers[i] = PyLong_AsVoidPtr(given[i]);
    }
    if (PyErr_Occurred()) return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS /* the driver waits where its queue is full */
    error = ((Launch)(intptr_t)pointers[0])(pointers[1], (unsigned)numbers[2], 1, 1, (unsigned)numbers[3], 1, 1, 0, pointers[4],
                                            (void **)pointers[5], NULL);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(error);
}

static PyMethodDef methods[] = {
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, "Start a kernel; gives the driver's error, 0 if there is none."},
    {"addresses", (PyCFunction)(void (*)(void))addresses, METH_FASTCALL,
     "Write down where the gradients on a GPU lie; False unless all are there, of the sizes and kinds that are given."},
    {"norm", norm, METH_O, "Norm of all gradients; -1.0 if there are none, None if they have to be read another way."},
    {"scalar", scalar, METH_O, "The one value of a tensor; None if it has to be read another way."},
    {"use", (PyCFunction)(void (*)(void))use, METH_FASTCALL,
     "Set the tensor class, its exchange table and how many values are read at most; False if the table is of another version."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_by_address", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__by_address(void) {
    name_of_grad = PyUnicode_InternFromString("grad");
    return name_of_grad ? PyModule_Create(&definition) : NULL;
}
