// Exponential and logarithm without a branch, a table or a call, so that loops over samples are
// vectorised. Exact to some units in the last place; NaN stays NaN. The argument is reduced as in
// Cody & Waite (1980), by the two parts of log(2) that fdlibm has.
#pragma once

#include <cstdint>
#include <cstring>

#include "core.hpp"

namespace sorel {

// log(2) in two parts, of which the first times a whole number below 2000 is exact; and 1 / log(2).
constexpr double kLog2High = 6.93147180369123816490e-01;
constexpr double kLog2Low = 1.90821492927058770002e-10;
constexpr double kPerLog2 = 1.44269504088896340736;

// exp(-a) is 0 from here on: beyond the least number, 2^-1074.
constexpr double kFar = 750.0;

// Added to a number, this leaves the nearest whole one in the last bits of the sum.
constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2^52

// 2^-k for 0 <= k <= 1022.
SOREL_INLINE double power_of_half(std::uint64_t k) {
    const std::uint64_t bits = (1023 - k) << 52;
    double power;
    std::memcpy(&power, &bits, sizeof power);
    return power;
}

// exp(-a) for a >= 0: 2^-k exp(r) with |r| <= log(2) / 2, by Taylor's series of degree 13.
SOREL_INLINE double falling_exponential(double a) {
    a = a > kFar ? kFar : a;
    const double shifted = a * kPerLog2 + kRounder;
    std::uint64_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    const double rounded = shifted - kRounder;
    const double r = (rounded * kLog2High - a) + rounded * kLog2Low;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    // In two factors, since 2^-k alone may be too small for the exponent of a double.
    const std::uint64_t k = bits & 0xfff, half = k >> 1;
    return p * power_of_half(half) * power_of_half(k - half);
}

// log(1 + x) for 0 <= x <= 1: twice the inverse hyperbolic tangent of s = x / (2 + x) <= 1/3.
SOREL_INLINE double log_one_plus(double x) {
    const double s = x / (2.0 + x), t = s * s;
    double p = 1.0 / 33.0;
    p = p * t + 1.0 / 31.0;
    p = p * t + 1.0 / 29.0;
    p = p * t + 1.0 / 27.0;
    p = p * t + 1.0 / 25.0;
    p = p * t + 1.0 / 23.0;
    p = p * t + 1.0 / 21.0;
    p = p * t + 1.0 / 19.0;
    p = p * t + 1.0 / 17.0;
    p = p * t + 1.0 / 15.0;
    p = p * t + 1.0 / 13.0;
    p = p * t + 1.0 / 11.0;
    p = p * t + 1.0 / 9.0;
    p = p * t + 1.0 / 7.0;
    p = p * t + 1.0 / 5.0;
    p = p * t + 1.0 / 3.0;
    return 2.0 * s + 2.0 * s * t * p;
}

// log(1 + x) for x >= 0: k log(2) and the logarithm of (1 + x) / 2^k, from 1 to 2. Where k is 0, x
// keeps the digits that the sum has lost.
SOREL_INLINE double log_of_sum(double x) {
    const double sum = 1.0 + x;
    std::uint64_t bits, number;
    std::memcpy(&bits, &sum, sizeof bits);
    std::memcpy(&number, &kRounder, sizeof number);
    // A whole number in the last bits of a double, as above.
    const std::uint64_t k = (bits >> 52) - 1023;
    number += k;
    double twos;
    std::memcpy(&twos, &number, sizeof twos);
    twos -= kRounder;
    const double rest = twos > 0.0 ? sum * power_of_half(k) - 1.0 : x;
    return twos * kLog2High + (log_one_plus(rest) + twos * kLog2Low);
}

}  // namespace sorel
