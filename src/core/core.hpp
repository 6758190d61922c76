// What every file of loops needs: views, the list of bindings, and versions for newer processors.
#pragma once

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

// Short helpers must be part of the loop that calls them, whatever version that is.
#if defined(__GNUC__) || defined(__clang__)
#define SOREL_INLINE inline __attribute__((always_inline))
#else
#define SOREL_INLINE inline
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

void bind_dense(nb::module_& module);

}  // namespace sorel
