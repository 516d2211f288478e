/* Bicubic resizing of uint8 images: every byte is equal to that of Pillow's Image.resize.

   The arithmetic is therefore Pillow's: weights in double, made to sum to 1, rounded to 22 bits;
   exact 32-bit sums; one pass into bytes, then the other. Only the loops differ: both passes use
   `blend`, which adds up weighted rows. The horizontal pass transposes strips of rows before and
   after it. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_blend.h"

enum {
    MAX_CHANNELS = 4,
    MAX_SIDE = 1 << 24, /* up to here, a float holds every pixel position exactly */
    STRIP = 2 * BLOCK,  /* rows that go through the horizontal pass together */
};

/* The inputs of one output row or column, and the index of its first weight. */
typedef struct {
    int first; /* counted from Axis.first */
    int num;
    size_t weights;
} Window;

/* One axis: the inputs of each output. */
typedef struct {
    Window *windows;
    int32_t *weights; /* of each window, padded to an even number with a 0 */
    size_t num_weights;
    int first, end; /* the range of inputs in all windows */
} Axis;

/* The cubic convolution kernel of Keys (1981) with a = -1/2. */
static double
bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0)
        return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

static void *
allocate(size_t count, size_t size)
{
    return count > SIZE_MAX / size ? NULL : malloc(count * size);
}

static void
free_axis(Axis *axis)
{
    free(axis->windows);
    free(axis->weights);
}

/* Fill the axis for resizing low..high of `in_size` pixels to `out_size`; 0 if out of memory.
   The caller frees the axis in both cases. */
static int
make_axis(Axis *axis, int in_size, float low, float high, int out_size)
{
    const double scale = (double)(high - low) / out_size;
    const double stretch = scale < 1.0 ? 1.0 : scale;
    const double support = 2.0 * stretch, per_pixel = 1.0 / stretch;
    const int most = support < in_size ? (int)ceil(support) * 2 + 1 : in_size;
    const size_t room = (size_t)(most < in_size ? most : in_size) + 1;

    axis->windows = allocate((size_t)out_size, sizeof(Window));
    axis->weights = (size_t)out_size > SIZE_MAX / room
        ? NULL : allocate((size_t)out_size * room, sizeof(int32_t));
    double *shares = allocate(room, sizeof(double));
    int done = axis->windows && axis->weights && shares;
    size_t used = 0;
    axis->first = in_size;
    axis->end = 0;
    for (int i = 0; done && i < out_size; i++) {
        double centre = low + (i + 0.5) * scale, total = 0.0;
        int first = (int)(centre - support + 0.5), end = (int)(centre + support + 0.5);
        first = first < 0 ? 0 : first;
        end = end > in_size ? in_size : end;
        int num = end - first;
        for (int tap = 0; tap < num; tap++) {
            shares[tap] = bicubic((tap + first - centre + 0.5) * per_pixel);
            total += shares[tap];
        }
        axis->windows[i] = (Window){first, num, used};
        for (int tap = 0; tap < num; tap++) {
            double weight = total != 0.0 ? shares[tap] / total : shares[tap];
            weight *= 1 << PRECISION;
            axis->weights[used++] = (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
        }
        if (num % 2)
            axis->weights[used++] = 0;
        axis->first = first < axis->first ? first : axis->first;
        axis->end = end > axis->end ? end : axis->end;
    }
    for (int i = 0; done && i < out_size; i++)
        axis->windows[i].first -= axis->first;
    axis->num_weights = used;
    free(shares);
    return done;
}

static Blend *
choose_blend(Axis *axis, size_t width, int simd)
{
#if HAVE_AVX2
    if (simd && width >= BLOCK && __builtin_cpu_supports("avx2")) {
        split_weights(axis->weights, axis->num_weights);
        return blend_avx2;
    }
#endif
    return blend_portable;
}

typedef struct {
    uint8_t *bytes;
    size_t stride; /* bytes from one row to the next */
    size_t height, width, channels;
} Image;

/* The vertical pass. This and the next three functions return 0 if out of memory, else 1. */
static int
resize_down(const Image *out, const Image *in, Axis *rows, int simd)
{
    const size_t row_bytes = out->width * out->channels;
    Blend *blend = choose_blend(rows, row_bytes, simd);
    for (size_t y = 0; y < out->height; y++) {
        Window window = rows->windows[y];
        blend(
            out->bytes + y * out->stride, in->bytes + (size_t)window.first * in->stride,
            in->stride, row_bytes, rows->weights + window.weights, window.num);
    }
    return 1;
}

/* The horizontal pass: the vertical pass on transposed strips, whose rows are columns. */
static int
resize_across(const Image *out, const Image *in, Axis *columns, int mirrored, int simd)
{
    const size_t pitch = in->channels * STRIP;
    Blend *blend = choose_blend(columns, pitch, simd);
    uint8_t *upright = calloc(in->width, pitch); /* zeros if rows are fewer */
    uint8_t *resized = allocate(out->width, pitch);
    int done = upright && resized;
    for (size_t i = 0; done && i < out->height; i += STRIP) {
        size_t height = out->height < STRIP ? out->height : STRIP;
        size_t y = i + height > out->height ? out->height - height : i;
        transpose(
            upright, STRIP, in->bytes + y * in->stride, in->stride, height,
            in->width * in->channels);
        for (size_t x = 0; x < out->width; x++) {
            Window window = columns->windows[x];
            blend(
                resized + (mirrored ? out->width - 1 - x : x) * pitch, upright + (size_t)window.first * pitch, pitch, pitch,
                columns->weights + window.weights, window.num);
        }
        transpose(
            out->bytes + y * out->stride, out->stride, resized, STRIP,
            out->width * out->channels, height);
    }
    free(upright);
    free(resized);
    return done;
}

/* Both passes, the vertical one first if `down_first`. */
static int
resize_both(
    const Image *out, const Image *in, Axis *columns, Axis *rows, int down_first, int mirrored,
    int simd)
{
    Image middle = {
        NULL, 0, down_first ? out->height : in->height, down_first ? in->width : out->width,
        in->channels};
    middle.stride = middle.width * middle.channels;
    middle.bytes = allocate(middle.height, middle.stride);
    if (!middle.bytes)
        return 0;
    int done = down_first
        ? resize_down(&middle, in, rows, simd) &&
            resize_across(out, &middle, columns, mirrored, simd)
        : resize_across(&middle, in, columns, mirrored, simd) &&
            resize_down(out, &middle, rows, simd);
    free(middle.bytes);
    return done;
}

/* Resize the box (left, top, right, bottom) of `in` to the size of `out`. If mirrored, the horizontal
   pass exchanges left and right; at the same width it has weights of 1 and changes no byte. */
static int
resize(
    const Image *out, const Image *in, const float box[4], int down_first, int simd, int mirrored)
{
    const int across = mirrored || in->width != out->width || box[0] != 0.0f || box[2] != (float)out->width;
    const int down = in->height != out->height || box[1] != 0.0f || box[3] != (float)out->height;
    Axis columns = {0}, rows = {0};
    int done = make_axis(&rows, (int)in->height, box[1], box[3], (int)out->height) &&
        make_axis(&columns, (int)in->width, box[0], box[2], (int)out->width);
    if (done) {
        const Image used = {
            in->bytes + (size_t)rows.first * in->stride + (size_t)columns.first * in->channels,
            in->stride, (size_t)(rows.end - rows.first), (size_t)(columns.end - columns.first),
            in->channels};
        if (across && down)
            done = resize_both(out, &used, &columns, &rows, down_first, mirrored, simd);
        else if (across)
            done = resize_across(out, &used, &columns, mirrored, simd);
        else if (down)
            done = resize_down(out, &used, &rows, simd);
        else
            memcpy(out->bytes, in->bytes, out->height * out->stride);
    }
    free_axis(&rows);
    free_axis(&columns);
    return done;
}

/* Fill `image` from an array; or set an error and return 0 if it is of a wrong type or shape. */
static int
as_image(Image *image, const Py_buffer *view, const char *name)
{
    if (view->ndim != 3 || view->itemsize != 1 || (view->format && strcmp(view->format, "B"))) {
        PyErr_Format(PyExc_ValueError, "%s is not uint8[height, width, channels]", name);
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        Py_ssize_t most = i < 2 ? MAX_SIDE : MAX_CHANNELS;
        if (view->shape[i] < 1 || view->shape[i] > most) {
            PyErr_Format(
                PyExc_ValueError, "%s has %zd %s, not 1 to %zd", name, view->shape[i],
                i == 0 ? "rows" : i == 1 ? "columns" : "channels", most);
            return 0;
        }
    }
    *image = (Image){
        view->buf, (size_t)(view->shape[1] * view->shape[2]), (size_t)view->shape[0],
        (size_t)view->shape[1], (size_t)view->shape[2]};
    return 1;
}

static int
check(const Image *in, const Image *out, const float box[4])
{
    if (in->channels != out->channels) {
        PyErr_SetString(PyExc_ValueError, "pixels and out differ in channels");
        return 0;
    }
    /* written so that a NaN fails */
    if (!(box[0] >= 0.0f && box[0] <= box[2] && box[2] <= (float)in->width &&
          box[1] >= 0.0f && box[1] <= box[3] && box[3] <= (float)in->height)) {
        PyErr_SetString(PyExc_ValueError, "the box is not within the image");
        return 0;
    }
    return 1;
}

PyDoc_STRVAR(
    resize_doc,
    "resize(pixels, out, box, down_first, simd=True, mirrored=False)\n--\n\n"
    "Write the resized box (left, top, right, bottom) of pixels to out.\n\n"
    "Both are uint8[height, width, channels], C-contiguous, and do not overlap. The vertical\n"
    "pass comes first if down_first. simd=False takes the portable path; mirrored=True\n"
    "exchanges left and right. The GIL is released. Raises ValueError for wrong shapes and boxes.");

static PyObject *
py_resize(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *pixels, *result, *answer = NULL;
    float box[4];
    int down_first, simd = 1, mirrored = 0;
    if (!PyArg_ParseTuple(
            args, "OO(ffff)p|pp:resize", &pixels, &result, &box[0], &box[1], &box[2], &box[3],
            &down_first, &simd, &mirrored))
        return NULL;
    Py_buffer in_view, out_view;
    if (PyObject_GetBuffer(pixels, &in_view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT))
        return NULL;
    if (PyObject_GetBuffer(result, &out_view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)) {
        PyBuffer_Release(&in_view);
        return NULL;
    }
    Image in, out;
    if (as_image(&in, &in_view, "pixels") && as_image(&out, &out_view, "out") &&
        check(&in, &out, box)) {
        int done;
        Py_BEGIN_ALLOW_THREADS
        done = resize(&out, &in, box, down_first, simd, mirrored);
        Py_END_ALLOW_THREADS
        answer = done ? Py_NewRef(Py_None) : PyErr_NoMemory();
    }
    PyBuffer_Release(&out_view);
    PyBuffer_Release(&in_view);
    return answer;
}

static PyMethodDef methods[] = {
    {"resize", py_resize, METH_VARARGS, resize_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shardprep.image._resample",
    .m_doc = "Pillow's bicubic resize of uint8 images, vectorised.",
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__resample(void)
{
    return PyModuleDef_Init(&module);
}
