// The ascending order of a vector: repaired by insertion, or sorted by the leading bits.
//
// A key holds the leading 32 bits of a value and the item's number below them. Three passes of
// counting sort on 11 bits each (Knuth, vol. 3, 5.2.5) leave only near ties to the repair.
#include "ordering.hpp"

#include <cstdint>
#include <cstring>

namespace sorel {
namespace {

using Key = std::uint64_t;

constexpr int kDigit = 11;
constexpr int kDigits = 3;
constexpr index kBuckets = index{1} << kDigit;
// Bits of the item's number, below those of the value.
constexpr int kItemBits = 32;

SOREL_INLINE index digit(Key key, index shift) { return (key >> shift) & (kBuckets - 1); }

// The leading 32 bits of values - middle, followed by the numbers of the items from `first` on. The
// bits of doubles, those of negative ones inverted, ascend with them; distances from a value in the
// middle keep the digits where values are dense.
SOREL_CLONES void radix_keys(Vector<const double> values, double middle, index first,
                             Vector<Key> keys) {
    constexpr Key kSign = Key{1} << 63;
    const index n = values.size();
    for (index i = 0; i < n; ++i) {
        const double distance = values[i] - middle;
        Key key;
        std::memcpy(&key, &distance, sizeof key);
        key = key & kSign ? ~key : key | kSign;
        keys[i] = (key >> kItemBits << kItemBits) | static_cast<Key>(first + i);
    }
}

// counts[b] += the keys in bucket b, by the digit at `shift`.
void radix_count(Vector<const Key> keys, index shift, Vector<std::int64_t> counts) {
    for (index i = 0; i < keys.size(); ++i) ++counts[digit(keys[i], shift)];
}

// Put each key at the next free place of its bucket.
void radix_scatter(Vector<const Key> keys, Vector<Key> target, index shift,
                   Vector<std::int64_t> places) {
    for (index i = 0; i < keys.size(); ++i) target[places[digit(keys[i], shift)]++] = keys[i];
}

// order = the numbers of the items, without their values.
template <class Index>
SOREL_CLONES void radix_items(Vector<const Key> keys, Vector<Index> order) {
    const index n = keys.size();
    for (index i = 0; i < n; ++i) order[i] = static_cast<Index>(keys[i] & 0xFFFFFFFF);
}

// The whole sort in one thread; `source` and `target` are working memory.
template <class Index>
void radix_order(Vector<const double> values, double middle, Vector<Key> source, Vector<Key> target,
                 Vector<Index> order) {
    radix_keys(values, middle, 0, source);
    const index n = source.size();
    std::int64_t counts[kDigits][kBuckets] = {};
    // One sweep counts all digits: their numbers do not depend on the order.
    for (index i = 0; i < n; ++i)
        for (int k = 0; k < kDigits; ++k) ++counts[k][digit(source[i], kItemBits + kDigit * k)];
    for (int k = 0; k < kDigits; ++k) {
        std::int64_t before = 0;
        for (std::int64_t& count : counts[k]) {
            const std::int64_t size = count;
            count = before;
            before += size;
        }
        radix_scatter({source.data, {n}}, target, kItemBits + kDigit * k, {counts[k], {kBuckets}});
        std::swap(source, target);
    }
    radix_items<Index>({source.data, {n}}, order);
}

template <class Index>
void bind(nb::module_& m) {
    define(m, "repair", "values order key budget", repair<Index>);
    define(m, "radix_items", "keys order", radix_items<Index>);
    define(m, "radix_order", "values middle source target order", radix_order<Index>);
}

}  // namespace

void bind_ordering(nb::module_& m) {
    bind<std::int32_t>(m);
    bind<std::int64_t>(m);
    define(m, "radix_keys", "values middle first keys", radix_keys);
    define(m, "radix_count", "keys shift counts", radix_count);
    define(m, "radix_scatter", "keys target shift places", radix_scatter);
}

}  // namespace sorel
