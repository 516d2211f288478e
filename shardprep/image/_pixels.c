/* Loops over the pixels of PNG and WebP: undo filters, look up palettes, flatten transparency.

   The filters are those of the PNG specification, chapter 9: each byte is stored as its difference
   from a guess, which uses the pixels to the left (a), above (b) and above to the left (c). */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define HAVE_VECTORS 1
#else
#define HAVE_VECTORS 0
#endif

enum { NONE, SUB, UP, AVERAGE, PAETH };

enum { MAX_STEP = 8, PALETTE_BYTES = 3 * 256 };

/* Return which of a, b and c is nearest to a + b - c, the first of them if several are.

   Compares 3 c - a - b with the smaller and the larger of a and b: no absolute values needed. */
static inline uint8_t
paeth(int a, int b, int c)
{
    const int limit = 3 * c - a - b, low = a < b ? a : b, high = a < b ? b : a;
    return (uint8_t)(limit <= low ? high : high <= limit ? low : c);
}

/* Undo the filter of one row; a pixel has `step` bytes. `above` is zeros for the first row.

   The bytes before `start` are done. */
static inline void
undo_row(
    uint8_t *out, const uint8_t *in, const uint8_t *above, size_t start, size_t num, size_t step,
    int filter)
{
    if (filter == UP) {
        for (size_t i = start; i < num; i++)
            out[i] = (uint8_t)(in[i] + above[i]);
        return;
    }
    for (; start < step; start++) {
        int guess = filter == SUB ? 0 : filter == AVERAGE ? above[start] / 2 : above[start];
        out[start] = (uint8_t)(in[start] + guess);
    }
    if (filter == SUB)
        for (size_t i = start; i < num; i++)
            out[i] = (uint8_t)(in[i] + out[i - step]);
    else if (filter == AVERAGE)
        for (size_t i = start; i < num; i++)
            out[i] = (uint8_t)(in[i] + (out[i - step] + above[i]) / 2);
    else
        for (size_t i = start; i < num; i++)
            out[i] = (uint8_t)(in[i] + paeth(out[i - step], above[i], above[i - step]));
}

#if HAVE_VECTORS

typedef int16_t Lanes __attribute__((vector_size(16)));
typedef uint64_t Halves __attribute__((vector_size(16)));
typedef uint8_t Octets __attribute__((vector_size(16)));
typedef uint8_t Bytes __attribute__((vector_size(8)));

/* Return 3 or 4 bytes; a pixel of 3 bytes may be loaded with a byte of the next. */
static inline uint64_t
load(const uint8_t *from, size_t num)
{
    uint32_t word = 0;
    if (num == 4)
        memcpy(&word, from, 4);
    else
        memcpy(&word, from, 3);
    return word;
}

static inline Lanes
chosen(Lanes mask, Lanes x, Lanes y)
{
    return (mask & x) | (~mask & y);
}

#if defined(__SSE2__) /* has instructions that compilers do not find */
static inline Lanes
lanes(uint64_t word)
{
    return (Lanes)_mm_unpacklo_epi8(_mm_set_epi64x(0, (int64_t)word), _mm_setzero_si128());
}

static inline Lanes
smaller(Lanes x, Lanes y)
{
    return (Lanes)_mm_min_epi16((__m128i)x, (__m128i)y);
}

static inline Lanes
larger(Lanes x, Lanes y)
{
    return (Lanes)_mm_max_epi16((__m128i)x, (__m128i)y);
}
#else
static inline Lanes
lanes(uint64_t word)
{
    Bytes bytes;
    memcpy(&bytes, &word, 8);
    return __builtin_convertvector(bytes, Lanes);
}

static inline Lanes
smaller(Lanes x, Lanes y)
{
    return chosen(x < y, x, y);
}

static inline Lanes
larger(Lanes x, Lanes y)
{
    return chosen(x < y, y, x);
}
#endif

/* Undo the filter of a row of pixels of 3 or 4 bytes, and of the next row if `both`.

   Each pixel needs the result to its left, so rows are undone side by side: the first one in the
   lower four lanes, and the next row, a pixel behind it, in the upper four. */
static inline void
undo_pixels(
    uint8_t *out, const uint8_t *in, const uint8_t *above, size_t num, size_t step, int filter,
    int both)
{
    const uint8_t *next_in = in + num + 1;
    uint8_t *next = out + num;
    undo_row(out, in, above, 0, step, step, filter);
    Lanes a = lanes(load(out, step)), c = lanes(load(above, step));
    for (size_t i = step; i < num; i += step) {
        const size_t width = i + step < num ? 4 : step;
        uint64_t word = load(in + i, width);
        if (both)
            word |= load(next_in + i - step, 4) << 32;
        const Halves up = (Halves)lanes(load(above + i, width)), left = (Halves)a;
        const Lanes b = (Lanes)(Halves){up[0], left[0]};
        Lanes guess = a;
        if (filter == AVERAGE)
            guess = (a + b) >> 1;
        else if (filter == PAETH) {
            const Lanes limit = c + c + c - b - a, low = smaller(a, b), high = larger(a, b);
            guess = chosen(limit > low, chosen(high > limit, c, low), high);
        }
        a = (Lanes)((Octets)lanes(word) + (Octets)guess);
        c = b;
        const Bytes bytes = __builtin_convertvector(a, Bytes);
        memcpy(&word, &bytes, 8);
        memcpy(out + i, &word, step);
        word >>= 32;
        if (both)
            memcpy(next + i - step, &word, step);
    }
    if (both)
        undo_row(next, next_in, out, num - step, num, step, filter);
}

static void
undo_wide(
    uint8_t *out, const uint8_t *in, const uint8_t *above, size_t num, size_t step, int filter,
    int both)
{
    /* constant arguments, so that the compiler makes an unrolled loop for each case */
    if (step == 3 && filter == SUB)
        undo_pixels(out, in, above, num, 3, SUB, both);
    else if (step == 3 && filter == AVERAGE)
        undo_pixels(out, in, above, num, 3, AVERAGE, both);
    else if (step == 3)
        undo_pixels(out, in, above, num, 3, PAETH, both);
    else if (filter == SUB)
        undo_pixels(out, in, above, num, 4, SUB, both);
    else if (filter == AVERAGE)
        undo_pixels(out, in, above, num, 4, AVERAGE, both);
    else
        undo_pixels(out, in, above, num, 4, PAETH, both);
}
#endif

/* Undo the filters of all rows; return 0 if a row has an unknown filter, else 1. */
static int
undo(uint8_t *out, const uint8_t *in, size_t height, size_t num, size_t step, const uint8_t *zeros)
{
    const uint8_t *above = zeros;
    for (size_t y = 0; y < height; y++, in += num + 1) {
        uint8_t *row = out + y * num;
        const int filter = in[0];
        if (filter > PAETH)
            return 0;
        if (filter == NONE)
            memcpy(row, in + 1, num);
#if HAVE_VECTORS
        else if ((step == 3 || step == 4) && filter != UP) {
            const int both = y + 1 < height && in[num + 1] == filter;
            undo_wide(row, in + 1, above, num, step, filter, both);
            if (both) {
                y++;
                in += num + 1;
                row += num;
            }
        }
#endif
        else if (step == 1)
            undo_row(row, in + 1, above, 0, num, 1, filter);
        else
            undo_row(row, in + 1, above, 0, num, step, filter);
        above = row;
    }
    return 1;
}

PyDoc_STRVAR(
    unfilter_doc,
    "unfilter(data, out, row_bytes, step)\n--\n\n"
    "Write the unfiltered rows of PNG data to out.\n\n"
    "A row of data is a filter number and row_bytes bytes; a pixel has step bytes, 1 to 8. Raises\n"
    "ValueError for wrong sizes and filters.");

static PyObject *
py_unfilter(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer data, out;
    Py_ssize_t row_bytes, step;
    if (!PyArg_ParseTuple(args, "y*w*nn:unfilter", &data, &out, &row_bytes, &step))
        return NULL;
    PyObject *answer = NULL;
    uint8_t *zeros = NULL;
    const Py_ssize_t height = row_bytes > 0 ? out.len / row_bytes : 0;
    if (step < 1 || step > MAX_STEP || row_bytes < step || row_bytes % step ||
        out.len != height * row_bytes || data.len != out.len + height)
        PyErr_SetString(PyExc_ValueError, "data, out, row_bytes and step do not fit each other");
    else if (!(zeros = calloc((size_t)row_bytes, 1)))
        PyErr_NoMemory();
    else {
        int done;
        Py_BEGIN_ALLOW_THREADS
        done = undo(
            out.buf, data.buf, (size_t)height, (size_t)row_bytes, (size_t)step, zeros);
        Py_END_ALLOW_THREADS
        if (done)
            answer = Py_NewRef(Py_None);
        else
            PyErr_SetString(PyExc_ValueError, "a row has an unknown filter");
    }
    free(zeros);
    PyBuffer_Release(&out);
    PyBuffer_Release(&data);
    return answer;
}

PyDoc_STRVAR(
    look_up_doc,
    "look_up(indices, palette, out)\n--\n\n"
    "Write the RGB colour of each index to out; the palette has 256 RGB colours.\n\n"
    "Raises ValueError for wrong sizes.");

static PyObject *
py_look_up(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer indices, palette, out;
    if (!PyArg_ParseTuple(args, "y*y*w*:look_up", &indices, &palette, &out))
        return NULL;
    PyObject *answer = NULL;
    if (palette.len != PALETTE_BYTES || out.len % 3 || out.len / 3 != indices.len)
        PyErr_SetString(PyExc_ValueError, "indices, palette and out do not fit each other");
    else {
        const uint8_t *from = indices.buf, *colours = palette.buf;
        uint8_t *to = out.buf;
        const size_t num = (size_t)indices.len;
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < num; i++)
            memcpy(to + 3 * i, colours + 3 * from[i], 3);
        Py_END_ALLOW_THREADS
        answer = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&palette);
    PyBuffer_Release(&indices);
    return answer;
}

/* Return the weighted mean of two levels, divided by 255 and rounded as in Pillow. */
static inline uint8_t
blend(int above, int below, int alpha)
{
    const int sum = above * alpha + below * (255 - alpha) + 128;
    return (uint8_t)(((sum >> 8) + sum) >> 8);
}

PyDoc_STRVAR(
    flatten_doc,
    "flatten(pixels, out, background)\n--\n\n"
    "Write RGBA or grey-alpha pixels over a background (r, g, b) to out, as RGB.\n\n"
    "Without a background (None), alpha is ignored. Raises ValueError for wrong sizes.");

static PyObject *
py_flatten(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer pixels, out;
    PyObject *background, *answer = NULL;
    unsigned char below[3] = {0};
    if (!PyArg_ParseTuple(args, "y*w*O:flatten", &pixels, &out, &background))
        return NULL;
    const Py_ssize_t num = out.len / 3, channels = num ? pixels.len / num : 0;
    if (out.len != 3 * num || pixels.len != num * channels || (channels != 2 && channels != 4))
        PyErr_SetString(PyExc_ValueError, "pixels and out do not fit each other");
    else if (
        background == Py_None ||
        PyArg_ParseTuple(background, "bbb", &below[0], &below[1], &below[2])) {
        const int is_opaque = background == Py_None;
        const uint8_t *from = pixels.buf, *const end = from + pixels.len;
        const size_t green = channels == 4 ? 1 : 0, blue = 2 * green, alpha = 3 * green + !green;
        uint8_t *to = out.buf;
        Py_BEGIN_ALLOW_THREADS
        for (; from < end; from += channels, to += 3) {
            const int share = from[alpha];
            if (share == 255 || is_opaque) {
                to[0] = from[0];
                to[1] = from[green];
                to[2] = from[blue];
            } else {
                to[0] = blend(from[0], below[0], share);
                to[1] = blend(from[green], below[1], share);
                to[2] = blend(from[blue], below[2], share);
            }
        }
        Py_END_ALLOW_THREADS
        answer = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&pixels);
    return answer;
}

static PyMethodDef methods[] = {
    {"unfilter", py_unfilter, METH_VARARGS, unfilter_doc},
    {"look_up", py_look_up, METH_VARARGS, look_up_doc},
    {"flatten", py_flatten, METH_VARARGS, flatten_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shardprep.image._pixels",
    .m_doc = "Filters, palettes and transparency of pixels, in C.",
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__pixels(void)
{
    return PyModuleDef_Init(&module);
}
