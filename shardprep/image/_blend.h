/* Loops that vector instructions make fast: weighted sums of rows, and the transposition of bytes.

   Each has a portable form too. All forms give equal bytes, because they add integers exactly. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_AVX2 1
#include <immintrin.h>
#else
#define HAVE_AVX2 0
#endif
#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif

enum {
    PRECISION = 22, /* fractional bits of a weight */
    LOW_BITS = 15,  /* low bits of a weight that is split into two signed halves of 16 */
    BLOCK = 16,     /* bytes of a vector on any machine */
};

/* Write `width` bytes: each is the weighted sum of the bytes at its place in `num` rows. */
typedef void Blend(
    uint8_t *out, const uint8_t *row, size_t stride, size_t width, const int32_t *weights, int num);

static uint8_t
to_byte(int32_t sum)
{
    sum >>= PRECISION;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void
blend_portable(
    uint8_t *out, const uint8_t *row, size_t stride, size_t width, const int32_t *weights, int num)
{
    for (size_t x = 0; x < width; x += 64) {
        int32_t sums[64];
        size_t length = width - x < 64 ? width - x : 64;
        for (size_t i = 0; i < length; i++)
            sums[i] = 1 << (PRECISION - 1);
        for (int tap = 0; tap < num; tap++) {
            const uint8_t *in = row + (size_t)tap * stride + x;
            for (size_t i = 0; i < length; i++)
                sums[i] += in[i] * weights[tap];
        }
        for (size_t i = 0; i < length; i++)
            out[x + i] = to_byte(sums[i]);
    }
}

#if HAVE_AVX2

/* A weight has 24 bits and the fast multiplication takes 16, so it is split: high * 2^15 + low. */
static void
split_weights(int32_t *weights, size_t num)
{
    for (size_t i = 0; i < num; i += 2) {
        int16_t halves[4] = {
            (int16_t)(weights[i] >> LOW_BITS), (int16_t)(weights[i + 1] >> LOW_BITS),
            (int16_t)(weights[i] & ((1 << LOW_BITS) - 1)),
            (int16_t)(weights[i + 1] & ((1 << LOW_BITS) - 1)),
        };
        memcpy(weights + i, halves, sizeof halves);
    }
}

#define AVX2 __attribute__((target("avx2")))

/* Sums of 16 columns in the order of unpacking: 0 to 3 and 8 to 11, then 4 to 7 and 12 to 15. */
typedef struct {
    __m256i high[2];
    __m256i low[2];
} Sums;

AVX2 static inline void
add_two_rows(Sums *sums, const uint8_t *row, const uint8_t *next, __m256i high, __m256i low)
{
    __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)row));
    __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)next));
    __m256i pairs[2] = {_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)};
    for (int i = 0; i < 2; i++) {
        sums->high[i] = _mm256_add_epi32(sums->high[i], _mm256_madd_epi16(pairs[i], high));
        sums->low[i] = _mm256_add_epi32(sums->low[i], _mm256_madd_epi16(pairs[i], low));
    }
}

AVX2 static inline __m256i
to_words(const Sums *sums)
{
    __m256i words[2];
    for (int i = 0; i < 2; i++) {
        __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(sums->high[i], LOW_BITS), sums->low[i]);
        words[i] = _mm256_srai_epi32(sum, PRECISION);
    }
    return _mm256_packs_epi32(words[0], words[1]);
}

AVX2 static void
blend_avx2(
    uint8_t *out, const uint8_t *row, size_t stride, size_t width, const int32_t *weights, int num)
{
    const __m256i half = _mm256_set1_epi32(1 << (PRECISION - 1));
    const __m256i zero = _mm256_setzero_si256();
    for (size_t x = 0; x < width; x += 32) {
        /* the last block overlaps the one before; below 32 bytes, the halves of a block overlap */
        if (x + 32 > width && width >= 32)
            x = width - 32;
        size_t right = width >= 32 ? 16 : width - 16;
        Sums sums[2] = {{{zero, zero}, {half, half}}, {{zero, zero}, {half, half}}};
        for (int tap = 0; tap < num; tap += 2) {
            const uint8_t *in = row + (size_t)tap * stride + x;
            const uint8_t *next = tap + 1 < num ? in + stride : in;
            __m256i high = _mm256_set1_epi32(weights[tap]);
            __m256i low = _mm256_set1_epi32(weights[tap + 1]);
            add_two_rows(&sums[0], in, next, high, low);
            add_two_rows(&sums[1], in + right, next + right, high, low);
        }
        __m256i bytes = _mm256_packus_epi16(to_words(&sums[0]), to_words(&sums[1]));
        bytes = _mm256_permute4x64_epi64(bytes, 0xD8);
        _mm_storeu_si128((__m128i *)(out + x), _mm256_castsi256_si128(bytes));
        _mm_storeu_si128((__m128i *)(out + x + right), _mm256_extracti128_si256(bytes, 1));
    }
}

#endif

/* A block of 16 x 16 bytes is transposed in four rounds. Each zips the upper rows with the lower
   ones, which moves one bit of a byte's row number into its column number. */
#if defined(__SSE2__)
typedef __m128i Line;
#define LOAD(from) _mm_loadu_si128((const __m128i *)(from))
#define STORE(to, line) _mm_storeu_si128((__m128i *)(to), line)
#define ZIP_LOW(a, b) _mm_unpacklo_epi8(a, b)
#define ZIP_HIGH(a, b) _mm_unpackhi_epi8(a, b)
#elif defined(__aarch64__) && defined(__ARM_NEON)
typedef uint8x16_t Line;
#define LOAD(from) vld1q_u8(from)
#define STORE(to, line) vst1q_u8(to, line)
#define ZIP_LOW(a, b) vzip1q_u8(a, b)
#define ZIP_HIGH(a, b) vzip2q_u8(a, b)
#endif

static void
transpose_block(uint8_t *out, size_t out_stride, const uint8_t *in, size_t in_stride)
{
#ifdef LOAD
    Line a[BLOCK], b[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        a[i] = LOAD(in + (size_t)i * in_stride);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < BLOCK / 2; i++) {
            b[2 * i] = ZIP_LOW(a[i], a[i + 8]);
            b[2 * i + 1] = ZIP_HIGH(a[i], a[i + 8]);
        }
        for (int i = 0; i < BLOCK / 2; i++) {
            a[2 * i] = ZIP_LOW(b[i], b[i + 8]);
            a[2 * i + 1] = ZIP_HIGH(b[i], b[i + 8]);
        }
    }
    for (int i = 0; i < BLOCK; i++)
        STORE(out + (size_t)i * out_stride, a[i]);
#else
    for (int y = 0; y < BLOCK; y++)
        for (int x = 0; x < BLOCK; x++)
            out[(size_t)x * out_stride + y] = in[(size_t)y * in_stride + x];
#endif
}

static void
transpose(
    uint8_t *out, size_t out_stride, const uint8_t *in, size_t in_stride, size_t height,
    size_t width)
{
    if (height < BLOCK || width < BLOCK) {
        for (size_t y = 0; y < height; y++)
            for (size_t x = 0; x < width; x++)
                out[x * out_stride + y] = in[y * in_stride + x];
        return;
    }
    for (size_t i = 0; i < height; i += BLOCK) {
        size_t y = i + BLOCK > height ? height - BLOCK : i; /* the last blocks overlap others */
        for (size_t j = 0; j < width; j += BLOCK) {
            size_t x = j + BLOCK > width ? width - BLOCK : j;
            transpose_block(out + x * out_stride + y, out_stride, in + y * in_stride + x, in_stride);
        }
    }
}
