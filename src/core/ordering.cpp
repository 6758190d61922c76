// The ascending order of a vector: repaired by insertion, or sorted by the leading bits.
//
// A key holds the leading 32 bits of a value and the item's number below them. Three passes of
// counting sort on 11 bits each (Knuth, vol. 3, 5.2.5) leave only near ties to the repair.
#include "ordering.hpp"

#include <cstdint>
#include <cstring>
#include <utility>

namespace sorel {
namespace {

using Key = std::uint64_t;

constexpr int kDigit = 11;
constexpr int kDigits = 3;
constexpr index kBuckets = index{1} << kDigit;
// Bits of the item's number, below those of the value.
constexpr int kItemBits = 32;

SOREL_INLINE index digit(Key key, int k) {
    return (key >> (kItemBits + kDigit * k)) & (kBuckets - 1);
}

// The leading 32 bits of values - middle, followed by the numbers of the items. The bits of
// doubles, those of negative ones inverted, ascend with them; distances from a value in the middle
// keep the digits where values are dense.
SOREL_INLINE void make_keys(Vector<const double> values, double middle, Key* keys) {
    constexpr Key kSign = Key{1} << 63;
    const index n = values.size();
    for (index i = 0; i < n; ++i) {
        const double distance = values[i] - middle;
        Key key;
        std::memcpy(&key, &distance, sizeof key);
        key = key & kSign ? ~key : key | kSign;
        keys[i] = (key >> kItemBits << kItemBits) | static_cast<Key>(i);
    }
}

// order = the ascending order of the values but for near ties; `source` and `target` are room.
template <class Index>
SOREL_CLONES void radix_order(Vector<const double> values, double middle, Vector<Key> source,
                              Vector<Key> target, Vector<Index> order) {
    make_keys(values, middle, source.data);
    const index n = values.size();
    index places[kDigits][kBuckets] = {};
    // One sweep counts all digits: their numbers do not depend on the order.
    for (index i = 0; i < n; ++i)
        for (int k = 0; k < kDigits; ++k) ++places[k][digit(source[i], k)];
    for (int k = 0; k < kDigits; ++k) {
        index before = 0;
        for (index& place : places[k]) before += std::exchange(place, before);
        for (index i = 0; i < n; ++i) target[places[k][digit(source[i], k)]++] = source[i];
        std::swap(source, target);
    }
    for (index i = 0; i < n; ++i) order[i] = static_cast<Index>(source[i] & 0xFFFFFFFF);
}

template <class Index>
void bind(nb::module_& m) {
    define(m, "repair", "values order key budget", repair<Index>);
    define(m, "radix_order", "values middle source target order", radix_order<Index>);
}

}  // namespace

void bind_ordering(nb::module_& m) {
    bind<std::int32_t>(m);
    bind<std::int64_t>(m);
}

}  // namespace sorel
