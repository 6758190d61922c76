// What every file of loops needs: views, the list of bindings, and versions for newer processors.
#pragma once

#include <nanobind/stl/tuple.h>

#include <cmath>
#include <tuple>

#include "view.hpp"

// One version of a loop for each level of x86-64, chosen when the module is loaded. Other compilers
// and processors get one version; results agree to rounding.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(SOREL_NO_CLONES)
#define SOREL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SOREL_CLONES
#endif

// Short helpers must be part of the loop that calls them, whatever version that is: functions are
// SOREL_INLINE, lambdas SOREL_INLINED.
#if defined(__GNUC__) || defined(__clang__)
#define SOREL_INLINE inline __attribute__((always_inline))
#define SOREL_INLINED __attribute__((always_inline))
#else
#define SOREL_INLINE inline
#define SOREL_INLINED
#endif

namespace sorel {

namespace nb = nanobind;

// Add a loop to the module. It runs without the interpreter's lock. The names of its parameters,
// in order and separated by blanks, go into `PARAMETERS`: engines cut arrays by rows along them.
// A name may be added several times, for arrays of several types.
template <class Function>
void define(nb::module_& module, const char* name, const char* parameters, Function* function) {
    module.def(name, function, nb::call_guard<nb::gil_scoped_release>());
    module.attr("PARAMETERS")[name] = nb::str(parameters).attr("split")();
}

void bind_cholesky(nb::module_& module);
void bind_constrained(nb::module_& module);
void bind_dense(nb::module_& module);
void bind_bins(nb::module_& module);
void bind_losses(nb::module_& module);
void bind_ordering(nb::module_& module);
void bind_pooling(nb::module_& module);
void bind_prox(nb::module_& module);
void bind_softmax(nb::module_& module);
void bind_steps(nb::module_& module);
void bind_thresholds(nb::module_& module);
void bind_sparse(nb::module_& module);
void bind_sparse_steps(nb::module_& module);
void bind_margins(nb::module_& module);
void bind_values(nb::module_& module);
void bind_vectors(nb::module_& module);

}  // namespace sorel
