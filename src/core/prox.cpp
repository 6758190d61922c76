// The proximal maps of the penalties, for calls from Python.
#include "prox.hpp"

namespace sorel {
namespace {

// w <- its proximal map.
void prox_vector(Vector<double> w, double step, int code, double l2, double l1,
                 Vector<const double> lower, Vector<const double> upper) {
    prox_inplace(w.data, w.size(), 1, step, {code, l2, l1, lower.data, upper.data});
}

// The same for every column of w.
void prox_inplace_outputs(Matrix<double> w, double step, int code, double l2, double l1,
                          Vector<const double> lower, Vector<const double> upper) {
    const index outputs = w.shape[1];
    for (index k = 0; k < outputs; ++k)
        prox_inplace(w.data + k, w.shape[0], outputs, step, {code, l2, l1, lower.data, upper.data});
}

}  // namespace

void bind_prox(nb::module_& m) {
    m.attr("PURE_L2") = static_cast<int>(kPureL2);
    m.attr("SEPARABLE") = static_cast<int>(kSeparable);
    m.attr("SIMPLEX") = static_cast<int>(kSimplex);
    define(m, "prox_inplace", "w step code l2 l1 lower upper", prox_vector);
    define(m, "prox_inplace_outputs", "w step code l2 l1 lower upper", prox_inplace_outputs);
}

}  // namespace sorel
