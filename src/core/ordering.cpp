// The ascending order of a vector: repaired by insertion, or sorted by the leading bits.
//
// A key holds the leading 32 bits of a value and the item's number below them. Three passes of
// counting sort on 11 bits each (Knuth, vol. 3, 5.2.5) leave only near ties to the repair. Several
// threads sort a bucket each, of the values between two splitters.
#include "ordering.hpp"

#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace sorel {
namespace {

using Key = std::uint64_t;
using Values = Vector<const double>;

constexpr int kDigit = 11;
constexpr int kDigits = 3;
constexpr index kBuckets = index{1} << kDigit;
// Bits of the item's number, below those of the value.
constexpr int kItemBits = 32;

SOREL_INLINE index digit(Key key, int k) {
    return (key >> (kItemBits + kDigit * k)) & (kBuckets - 1);
}

// The leading 32 bits of a distance, followed by the number of the item. The bits of doubles, those
// of negative ones inverted, ascend with them.
SOREL_INLINE Key make_key(double distance, index item) {
    constexpr Key kSign = Key{1} << 63;
    Key key;
    std::memcpy(&key, &distance, sizeof key);
    key = key & kSign ? ~key : key | kSign;
    return (key >> kItemBits << kItemBits) | static_cast<Key>(item);
}

// The bucket of a value: how many of the ascending splitters it reaches.
SOREL_INLINE index bucket_of(double value, Values splitters) {
    index bucket = 0;
    for (index k = 0; k < splitters.size(); ++k) bucket += splitters[k] <= value;
    return bucket;
}

// How many of the values are in each bucket.
SOREL_CLONES std::vector<index> count_buckets(Values values, Values splitters) {
    std::vector<index> counts(splitters.size() + 1);
    for (index i = 0; i < values.size(); ++i) ++counts[bucket_of(values[i], splitters)];
    return counts;
}

// keys of all values, by their distances from one of them
SOREL_CLONES void make_keys(Values values, double middle, Vector<Key> keys) {
    for (index i = 0; i < values.size(); ++i) keys[i] = make_key(values[i] - middle, i);
}

// Write the keys of the items from `first` on to the next places of their buckets, by the distances
// from a value in the middle of each.
SOREL_CLONES void fill_buckets(Values values, index first, Values middles, Values splitters,
                               std::vector<index> places, Vector<Key> keys) {
    for (index i = 0; i < values.size(); ++i) {
        const index bucket = bucket_of(values[i], splitters);
        keys[places[bucket]++] = make_key(values[i] - middles[bucket], first + i);
    }
}

// order = the ascending order of the keys but for near ties; `target` is room, as is `source` then.
template <class Index>
SOREL_CLONES void radix_order(Vector<Key> source, Vector<Key> target, Vector<Index> order) {
    const index n = order.size();
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
    define(m, "merge", "order key place budget", merge<Index>);
    define(m, "radix_order", "source target order", radix_order<Index>);
}

}  // namespace

void bind_ordering(nb::module_& m) {
    bind<std::int32_t>(m);
    bind<std::int64_t>(m);
    define(m, "make_keys", "values middle keys", make_keys);
    define(m, "count_buckets", "values splitters", count_buckets);
    define(m, "fill_buckets", "values first middles splitters places keys", fill_buckets);
}

}  // namespace sorel
