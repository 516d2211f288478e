/* Place boxes of the annotated image in the stored one, if none is clipped, dropped or repeated.

   The operations are those of `boxes.Boxes`, in the same order and in double precision. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

typedef struct {
    double scale, offset, side;
} Axis;

/* Return a place on an axis as a share of the stored image, 0 to 1. */
static inline float
share(double at, const Axis *axis)
{
    const double moved = at * axis->scale;
    const double found = (moved + axis->offset) / axis->side;
    return (float)(found < 0.0 ? 0.0 : found > 1.0 ? 1.0 : found);
}

/* Return 0 if a box leaves the image, has no area or may repeat another one; else 1. */
static int
place(const double *box, float *out, Py_ssize_t num, double width, double height,
      const Axis *x, const Axis *y)
{
    for (Py_ssize_t i = 0; i < num; i++, box += 4) {
        float *found = out + 4 * i;
        const int is_inside = 0.0 <= box[0] && box[0] < box[2] && box[2] <= width &&
                              0.0 <= box[1] && box[1] < box[3] && box[3] <= height;
        if (!is_inside) /* also for NaN */
            return 0;
        found[0] = share(box[1], y);
        found[1] = share(box[0], x);
        found[2] = share(box[3], y);
        found[3] = share(box[2], x);
        if (!(found[0] < found[2] && found[1] < found[3]))
            return 0;
        for (const float *other = out; other < found; other += 4)
            if (!memcmp(other, found, 4 * sizeof(float)))
                return 0;
    }
    return 1;
}

PyDoc_STRVAR(
    place_doc,
    "place(boxes, out, size, x, y)\n--\n\n"
    "Fill float32 out with boxes as shares of the stored image: y, x, y, x. Return False if Boxes\n"
    "has to place them.\n\n"
    "boxes are float64 x, y, x, y in an image of size (height, width); x and y are scale,\n"
    "offset and stored side of each axis. Raises ValueError for wrong sizes.");

static PyObject *
py_place(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer boxes, out;
    double height, width;
    Axis x, y;
    if (!PyArg_ParseTuple(
            args, "y*w*(dd)(ddd)(ddd):place", &boxes, &out, &height, &width, &x.scale, &x.offset,
            &x.side, &y.scale, &y.offset, &y.side))
        return NULL;
    PyObject *answer = NULL;
    const Py_ssize_t num = boxes.len / (Py_ssize_t)(4 * sizeof(double));
    if (boxes.len != num * (Py_ssize_t)(4 * sizeof(double)) || out.len * 2 != boxes.len)
        PyErr_SetString(PyExc_ValueError, "boxes and out do not fit each other");
    else
        answer = PyBool_FromLong(place(boxes.buf, out.buf, num, width, height, &x, &y));
    PyBuffer_Release(&out);
    PyBuffer_Release(&boxes);
    return answer;
}

static PyMethodDef methods[] = {
    {"place", py_place, METH_VARARGS, place_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shardprep.image._boxes",
    .m_doc = "Placement of boxes in the stored image, in C.",
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__boxes(void)
{
    return PyModuleDef_Init(&module);
}
