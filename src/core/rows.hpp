// The rows of X, of either type and any strides, as loops read them.
#pragma once

#include <vector>

#include "core.hpp"

namespace sorel {

// Rows that are read in place.
template <class T>
struct PlainRows {
    const T* data;
    index stride;

    SOREL_INLINE const T* row(index i) const { return data + i * stride; }
};

// Rows of doubles: in place where X has them so, else copied when they are asked for. The last four
// copies stay valid.
class DoubleRows {
  public:
    explicit DoubleRows(const AnyMatrix& X)
        : X_(X), in_place_(!X.single && (X.shape[1] <= 1 || X.stride[1] == 1)) {
        if (!in_place_) room_.resize(kCopies * X.shape[1]);
    }

    SOREL_INLINE const double* row(index i) {
        const index first = i * X_.stride[0];
        if (in_place_) return static_cast<const double*>(X_.data) + first;
        double* out = room_.data() + next_ * X_.shape[1];
        next_ = (next_ + 1) % kCopies;
        if (X_.single)
            copy(static_cast<const float*>(X_.data) + first, out);
        else
            copy(static_cast<const double*>(X_.data) + first, out);
        return out;
    }

  private:
    static constexpr index kCopies = 4;

    template <class T>
    SOREL_INLINE void copy(const T* x, double* out) const {
        const index d = X_.shape[1], step = X_.stride[1];
        if (step == 1) {
#pragma omp simd
            for (index j = 0; j < d; ++j) out[j] = x[j];
        } else {
            for (index j = 0; j < d; ++j) out[j] = x[j * step];
        }
    }

    AnyMatrix X_;
    bool in_place_;
    std::vector<double> room_;
    index next_ = 0;
};

// f(rows), where rows.row(i) points to the entries of row i: in place where these stand side by
// side.
template <class F>
SOREL_INLINE auto with_rows(const AnyMatrix& X, F&& f) {
    if (X.shape[1] > 1 && X.stride[1] != 1) return f(DoubleRows(X));
    if (X.single) return f(PlainRows<float>{static_cast<const float*>(X.data), X.stride[0]});
    return f(PlainRows<double>{static_cast<const double*>(X.data), X.stride[0]});
}

}  // namespace sorel
