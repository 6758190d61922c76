// Views of NumPy arrays, and their conversion from Python.
//
// A `View<T, N>` is a pointer and N lengths of a C-contiguous array of type T; `View<const T, N>`
// takes arrays that may not be written to as well. Nothing is copied or converted: an array of
// another type, order or number of axes is refused with a TypeError. The conversion uses NumPy's C
// interface because it costs a few nanoseconds where the buffer protocol costs ten times as many.
#pragma once

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL sorel_array_api
#ifndef SOREL_MAIN
#define NO_IMPORT_ARRAY
#endif
#include <nanobind/nanobind.h>
#include <numpy/arrayobject.h>

#include <cstdint>
#include <type_traits>

namespace sorel {

using index = std::ptrdiff_t;

template <class T, int N>
struct View {
    T* data = nullptr;
    index shape[N] = {};

    T& operator[](index i) const {
        static_assert(N == 1);
        return data[i];
    }
    T& operator()(index i, index j) const {
        static_assert(N == 2);
        return data[i * shape[1] + j];
    }
    T* row(index i) const {
        static_assert(N == 2);
        return data + i * shape[1];
    }
    index size() const {
        static_assert(N == 1);
        return shape[0];
    }
};

template <class T>
using Vector = View<T, 1>;
template <class T>
using Matrix = View<T, 2>;

// The same, or None, whose `data` is a null pointer.
template <class T, int N = 1>
struct Optional : View<T, N> {
    explicit operator bool() const { return this->data != nullptr; }
};

// X of a user: float64 or float32, in C or Fortran order, or some rows or columns of such a matrix.
// Strides count entries. Loops read it through `with_rows`, in rows.hpp.
struct AnyMatrix {
    const void* data = nullptr;
    bool single = false;
    index shape[2] = {};
    index stride[2] = {};
};

template <class T>
bool has_type(int number) {
    using U = std::remove_const_t<T>;
    if constexpr (std::is_same_v<U, double>)
        return number == NPY_FLOAT64;
    else if constexpr (std::is_same_v<U, float>)
        return number == NPY_FLOAT32;
    else if constexpr (std::is_same_v<U, bool>)
        return number == NPY_BOOL;
    else if constexpr (std::is_same_v<U, std::int8_t>)
        return number == NPY_INT8;
    else if constexpr (std::is_same_v<U, std::int32_t>)
        return number == NPY_INT32 || (sizeof(long) == 4 && number == NPY_LONG);
    else if constexpr (std::is_same_v<U, std::int64_t>)
        return number == NPY_INT64 || number == NPY_LONGLONG;
    else if constexpr (std::is_same_v<U, std::uint64_t>)
        return number == NPY_UINT64 || number == NPY_ULONGLONG;
    else
        static_assert(!sizeof(U), "no NumPy type for this");
}

template <class T, int N>
bool load(PyObject* object, View<T, N>& view) noexcept {
    if (!PyArray_Check(object)) return false;
    auto* array = reinterpret_cast<PyArrayObject*>(object);
    if (!has_type<T>(PyArray_TYPE(array)) || PyArray_NDIM(array) != N) return false;
    if (!PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISBEHAVED_RO(array)) return false;
    if (!std::is_const_v<T> && !PyArray_ISWRITEABLE(array)) return false;
    view.data = static_cast<T*>(PyArray_DATA(array));
    for (int axis = 0; axis < N; ++axis) view.shape[axis] = PyArray_DIM(array, axis);
    return true;
}

inline bool load(PyObject* object, AnyMatrix& matrix) noexcept {
    if (!PyArray_Check(object)) return false;
    auto* array = reinterpret_cast<PyArrayObject*>(object);
    const int number = PyArray_TYPE(array);
    matrix.single = has_type<float>(number);
    if (!(matrix.single || has_type<double>(number)) || PyArray_NDIM(array) != 2) return false;
    if (!PyArray_ISBEHAVED_RO(array)) return false;
    const index size = matrix.single ? sizeof(float) : sizeof(double);
    for (int axis = 0; axis < 2; ++axis) {
        matrix.shape[axis] = PyArray_DIM(array, axis);
        if (PyArray_STRIDE(array, axis) % size != 0) return false;
        matrix.stride[axis] = PyArray_STRIDE(array, axis) / size;
    }
    matrix.data = PyArray_DATA(array);
    return true;
}

}  // namespace sorel

namespace nanobind::detail {

template <>
struct type_caster<sorel::AnyMatrix> {
    NB_TYPE_CASTER(sorel::AnyMatrix, const_name("numpy.ndarray"))
    bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
        return sorel::load(source.ptr(), value);
    }
};

template <class T, int N>
struct type_caster<sorel::View<T, N>> {
    using Array = sorel::View<T, N>;
    NB_TYPE_CASTER(Array, const_name("numpy.ndarray"))
    bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
        return sorel::load(source.ptr(), value);
    }
};

template <class T, int N>
struct has_arg_defaults<sorel::Optional<T, N>> : std::true_type {};

template <class T, int N>
struct type_caster<sorel::Optional<T, N>> {
    using Array = sorel::Optional<T, N>;
    NB_TYPE_CASTER(Array, const_name("numpy.ndarray | None"))
    bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
        return source.is_none() || sorel::load<T, N>(source.ptr(), value);
    }
};

}  // namespace nanobind::detail
