/* A loss and the sum of squares of gradients in host memory, read by address: one call instead of some thirty. And the addresses of
   gradients on a GPU: one call for all of them; and the start of the kernel that reads them.

   Optional: without it (no compiler, functions that a torch does not have) the same number comes from torch calls. A gradient is
   looked at through torch's C interface, without a Python object for it: to make one costs most of a microsecond where the backward
   pass has just run on another core. Whatever is not a plain, dense tensor of a known type is left to torch. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* What torch calls a handle: the address of an at::Tensor, which is one pointer to the tensor's implementation. */
typedef const void *const *Handle;

/* In the order in which `use` takes their addresses; all but the first fill in a value and return an error, 0 if there is none. */
static struct {
    Handle (*grad)(const void *implementation); /* c10::TensorImpl::grad() const */
    int32_t (*layout)(Handle, int32_t *), (*device_type)(Handle, int32_t *), (*device_index)(Handle, int32_t *);
    int32_t (*dtype)(Handle, int32_t *), (*dimensions)(Handle, int64_t *);
    int32_t (*sizes)(Handle, int64_t **), (*strides)(Handle, int64_t **), (*data)(Handle, void **);
} torch;
enum { FUNCTIONS = sizeof torch / sizeof(void *) };

/* c10::DeviceType, c10::Layout and c10::ScalarType, which are part of saved files and do not change. */
enum { HOST = 0, CUDA = 1, STRIDED = 0, HALF = 5, SINGLE = 6, BFLOAT = 15, LANES = 16, BLOCK = 4096 };

typedef struct {
    int32_t device_type, device_index, dtype;
    int64_t dimensions, *sizes, *strides;
    void *data;
} View;

static PyTypeObject *tensor_class; /* these are set by `use` */
static Py_ssize_t place;           /* of the at::Tensor in its Python object */
static const void *undefined;      /* the implementation of a gradient that is not there */
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

/* Number of values if they fill their memory without a gap, in order or as images with the channels last; else -1. */
static int64_t dense_size(const View *view) {
    static const int last[4] = {1, 3, 2, 0};
    for (int channels_last = 0; channels_last <= (view->dimensions == 4); channels_last++) {
        int64_t size = 1, step = 0;
        for (; step < view->dimensions; step++) {
            int64_t axis = channels_last ? last[step] : view->dimensions - 1 - step;
            if (view->sizes[axis] != 1 && view->strides[axis] != size) break;
            size *= view->sizes[axis];
        }
        if (step == view->dimensions) return size;
    }
    return -1;
}

/* Looks at a tensor; gives its number of values, or -1 for one whose memory cannot simply be read. */
static int64_t look(Handle tensor, View *view) {
    int32_t layout;
    if (torch.layout(tensor, &layout) || layout != STRIDED) return -1;
    if (torch.device_type(tensor, &view->device_type) || (view->device_type != HOST && view->device_type != CUDA)) return -1;
    if (torch.device_index(tensor, &view->device_index) || torch.dtype(tensor, &view->dtype)) return -1;
    if (torch.dimensions(tensor, &view->dimensions) || torch.sizes(tensor, &view->sizes)) return -1;
    if (torch.strides(tensor, &view->strides)) return -1;
    int64_t size = dense_size(view);
    if (size < 0 || torch.data(tensor, &view->data) || (size && !view->data)) return -1;
    return size;
}

/* The same for a tensor of single precision on the host. */
static int64_t look_on_host(Handle tensor, View *view) {
    int64_t size = look(tensor, view);
    return size >= 0 && view->device_type == HOST && view->dtype == SINGLE ? size : -1;
}

static Handle handle_of(PyObject *object) { return (Handle)((char *)object + place); }

/* The gradient of a parameter; NULL if it has none. `is_tensor` is whether it can be asked at all. */
static Handle gradient_of(PyObject *parameter, int *is_tensor) {
    *is_tensor = PyObject_TypeCheck(parameter, tensor_class) && *handle_of(parameter);
    if (!*is_tensor) return NULL;
    Handle gradient = torch.grad(*handle_of(parameter));
    return *gradient == undefined ? NULL : gradient;
}

static PyObject *use(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    (void)module;
    if (count != 4 || !PyTuple_Check(given[2]) || PyTuple_GET_SIZE(given[2]) != FUNCTIONS) {
        PyErr_SetString(PyExc_TypeError, "use(tensor without a gradient, address of its implementation, functions, most values)");
        return NULL;
    }
    const void *implementation = PyLong_AsVoidPtr(given[1]);
    void *functions[FUNCTIONS];
    for (int i = 0; i < FUNCTIONS; i++) functions[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(given[2], i));
    most_values = PyLong_AsLongLong(given[3]);
    if (PyErr_Occurred()) return NULL;
    memcpy(&torch, functions, sizeof functions);
    for (place = sizeof(PyObject); place + (Py_ssize_t)sizeof(void *) <= Py_TYPE(given[0])->tp_basicsize; place += sizeof(void *)) {
        if (*handle_of(given[0]) != implementation) continue;
        Py_INCREF(Py_TYPE(given[0]));
        tensor_class = Py_TYPE(given[0]);
        undefined = *torch.grad(implementation);
        Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

static PyObject *scalar(PyObject *module, PyObject *tensor) {
    (void)module;
    View view;
    if (!tensor_class || Py_TYPE(tensor) != tensor_class || look_on_host(handle_of(tensor), &view) != 1) Py_RETURN_NONE;
    return PyFloat_FromDouble(*(const float *)view.data);
}

static PyObject *norm(PyObject *module, PyObject *parameters) {
    (void)module;
    if (!PyList_Check(parameters)) {
        PyErr_SetString(PyExc_TypeError, "norm(list of parameters)");
        return NULL;
    }
    if (!tensor_class) Py_RETURN_NONE;
    int64_t left = most_values;
    double total = 0.0;
    Py_ssize_t seen = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); i++) {
        int is_tensor;
        Handle gradient = gradient_of(PyList_GET_ITEM(parameters, i), &is_tensor);
        if (!is_tensor) Py_RETURN_NONE;
        if (!gradient) continue;
        View view;
        int64_t size = look_on_host(gradient, &view);
        left -= size;
        if (size < 0 || left < 0) Py_RETURN_NONE;
        total += sum_of_squares(view.data, size);
        seen++;
    }
    return PyFloat_FromDouble(seen ? sqrt(total) : -1.0);
}

static PyObject *addresses(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    (void)module;
    if (count != 5 || !PyList_Check(given[0])) {
        PyErr_SetString(PyExc_TypeError, "addresses(parameters, GPU, sizes, kinds, addresses)");
        return NULL;
    }
    long gpu = PyLong_AsLong(given[1]);
    if (PyErr_Occurred()) return NULL;
    if (!tensor_class) Py_RETURN_FALSE;
    static const int32_t kinds_of_dtypes[3] = {SINGLE, BFLOAT, HALF}; /* as the kernel counts them */
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
    int good = sizes.len == 8 * length && kinds.len == 4 * length && out.len == 8 * length;
    Handle *gradients = out.buf; /* first where the gradients are: a loop of its own, whose waits for memory overlap */
    for (Py_ssize_t i = 0; good && i < length; i++) {
        gradients[i] = gradient_of(PyList_GET_ITEM(given[0], i), &good);
        good = good && gradients[i];
    }
    for (Py_ssize_t i = 0; good && i < length; i++) {
        View view;
        good = look(gradients[i], &view) == ((int64_t *)sizes.buf)[i] && view.device_type == CUDA && view.device_index == gpu &&
               view.dtype == kinds_of_dtypes[((int32_t *)kinds.buf)[i]];
        if (good) ((int64_t *)out.buf)[i] = (int64_t)(intptr_t)view.data;
    }
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&kinds);
    PyBuffer_Release(&out);
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
     "Learn from a tensor where tensors keep their implementation, and torch's functions; False if it is not found there."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_by_address", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__by_address(void) { return PyModule_Create(&definition); }
