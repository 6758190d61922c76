// The extension module `sorel._core`: all compiled loops of the package.
//
// Loops take C-contiguous arrays and scalars only. A parameter named in `PER_ROW` has an entry for
// each sample, and `omega` has one when `weighted` (else the one weight that all samples share).
// Sums over the rows, such as X^T c, are added to what `out` holds.
#define SOREL_MAIN
#include "core.hpp"

namespace {

void* import_numpy() {
    import_array();
    return nullptr;
}

}  // namespace

NB_MODULE(_core, module) {
    import_numpy();
    if (PyErr_Occurred()) throw nanobind::python_error();
    module.attr("PARAMETERS") = nanobind::dict();
    sorel::bind_bins(module);
    sorel::bind_cholesky(module);
    sorel::bind_constrained(module);
    sorel::bind_dense(module);
    sorel::bind_losses(module);
    sorel::bind_margins(module);
    sorel::bind_ordering(module);
    sorel::bind_pooling(module);
    sorel::bind_prox(module);
    sorel::bind_softmax(module);
    sorel::bind_sparse(module);
    sorel::bind_sparse_steps(module);
    sorel::bind_steps(module);
    sorel::bind_thresholds(module);
    sorel::bind_values(module);
    sorel::bind_vectors(module);
}
