// Calls of the bare kernels from Python past torch's dispatcher, and past the boxes that it reads Python's arguments
// into: of a small tensor's call those are half the host's time.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <deque>

#include "direct.h"

namespace py = pybind11;

namespace torchreduce {
namespace {

// What is of torch, and of this release of it; alive as long as the process.
struct Torch {
  PyTypeObject *tensor = nullptr, *parameter = nullptr;
  PyObject* dtypes = nullptr;  // a dict to their numbers
  PyObject* handle_of = nullptr;
  Kind (*kind_of)(const void* handle) = nullptr;
  Record (*record_of)(const char* op) = nullptr;
  PyObject* (*wrap)(const void* handle) = nullptr;
} torch;

struct Callable {
  const DirectOp& op;
  PyObject* otherwise;  // what is called with arguments that are not for this; None: nothing, None is the result
  Record record;        // null: a call whose gradient is to be recorded is not for this
  bool first;           // the result is the op's first one alone
  PyMethodDef method;
};

// Exactly an int, which a bool is not.
bool read(PyObject* object, int64_t& to) {
  if (!PyLong_CheckExact(object)) return false;
  int overflow;
  to = PyLong_AsLongLongAndOverflow(object, &overflow);
  return !overflow;
}

// One int stands for a list of it.
bool read(PyObject* object, std::vector<int64_t>& to) {
  if (int64_t one; read(object, one)) {
    to.push_back(one);
    return true;
  }
  if (!PyTuple_CheckExact(object) && !PyList_CheckExact(object)) return false;
  PyObject** items = PySequence_Fast_ITEMS(object);
  to.resize(size_t(PySequence_Fast_GET_SIZE(object)));
  return std::all_of(to.begin(), to.end(), [&](int64_t& each) { return read(*items++, each); });
}

// A handle of a plain tensor, or of one whose gradient is to be recorded; null for anything else.
void* handle_of(PyObject* object, Kind& kind) {
  if (Py_TYPE(object) != torch.tensor && Py_TYPE(object) != torch.parameter) return nullptr;
  const auto capsule = py::reinterpret_steal<py::object>(PyObject_CallOneArg(torch.handle_of, object));
  if (!capsule) throw py::error_already_set();
  void* handle = PyCapsule_GetPointer(capsule.ptr(), PyCapsule_GetName(capsule.ptr()));
  kind = torch.kind_of(handle);
  if (kind != Kind::Other) return handle;
  drop_tensor(handle);
  return nullptr;
}

struct Arguments {
  std::array<Argument, kMostParameters> each;
  int tensors = 0;
  bool recorded = false;
  std::array<void*, kMostParameters> handles;

  // Whether the arguments are what the op's kernel takes, of such tensors. If so they are the kernel's.
  bool read_all(const DirectOp& op, bool records, PyObject* const* objects, Py_ssize_t count) {
    if (count != Py_ssize_t(op.parameters.size())) return false;
    for (Py_ssize_t i = 0; i < count; ++i)
      if (!read_one(op.parameters[size_t(i)], objects[i], each[size_t(i)]) || (recorded && !records)) {
        std::for_each_n(handles.begin(), tensors, drop_tensor);
        return false;
      }
    return true;
  }

 private:
  bool read_tensor(PyObject* object, Argument& to) {
    Kind kind;
    to.tensor = handle_of(object, kind);
    if (!to.tensor) return false;
    handles[size_t(tensors++)] = to.tensor;
    recorded |= kind == Kind::Recorded;
    return true;
  }
  bool read_one(Parameter parameter, PyObject* object, Argument& to) {
    to.given = object != Py_None;
    switch (parameter) {
      case Parameter::MaybeTensor:
        if (!to.given) return true;
        [[fallthrough]];
      case Parameter::Tensor: return read_tensor(object, to);
      case Parameter::MaybeInts: return !to.given || read(object, to.ints);
      case Parameter::Ints: return read(object, to.ints) && !to.ints.empty();
      case Parameter::Int: return read(object, to.number);
      case Parameter::Bool: to.number = object == Py_True; return PyBool_Check(object);
      case Parameter::Float:
        if (PyFloat_CheckExact(object)) {
          to.real = PyFloat_AS_DOUBLE(object);
          return true;
        }
        if (int64_t whole; read(object, whole)) {
          to.real = double(whole);
          return true;
        }
        return false;
      case Parameter::MaybeDtype:
        if (!to.given) return true;
        [[fallthrough]];
      case Parameter::Dtype: {
        PyObject* number = PyDict_GetItem(torch.dtypes, object);
        return number && read(number, to.number);
      }
    }
    return false;
  }
};

py::object wrap(void* handle) {
  PyObject* tensor = torch.wrap(handle);
  drop_tensor(handle);
  if (!tensor) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(tensor);
}

PyObject* call(PyObject* self, PyObject* const* objects, Py_ssize_t count, PyObject* names) try {
  const auto& callable = *static_cast<const Callable*>(PyCapsule_GetPointer(self, nullptr));
  const DirectOp& op = callable.op;
  if (Arguments arguments; !names && arguments.read_all(op, callable.record, objects, count)) {
    std::array<void*, kMostResults> results{};
    bool done;
    {
      const py::gil_scoped_release others;
      Argument* const each = arguments.each.data();
      done = arguments.recorded ? callable.record(op.call, each, results.data()) : op.call(each, results.data());
    }
    if (done && (op.results == 1 || callable.first)) {
      std::for_each_n(results.begin() + 1, op.results - 1, drop_tensor);
      return wrap(results[0]).release().ptr();
    }
    if (done) {
      py::tuple all(op.results);
      for (int i = 0; i < op.results; ++i) all[size_t(i)] = wrap(results[size_t(i)]);
      return all.release().ptr();
    }
    for (void* handle : results)
      if (handle) drop_tensor(handle);
    if (PyErr_Occurred()) return nullptr;  // of a hook for what is saved
  }
  if (callable.otherwise == Py_None) return Py_NewRef(Py_None);
  return PyObject_Vectorcall(callable.otherwise, objects, size_t(count), names);
} catch (py::error_already_set& error) {
  error.restore();
  return nullptr;
}

// The bare kernel of an op, as its overload .raw. Of what is not for this way `otherwise` is called, or if it is None,
// None is the result: an argument that is not the schema's or is given by name, a tensor that is not plain, or a kernel
// that raised. If `records`, gradients are recorded, where there is a rule of the op for that. If `first`, the result
// is the op's first one: a tensor that Python never sees costs less to free.
py::object direct(const std::string& name, const py::object& otherwise, bool records, bool first) {
  static std::deque<Callable> all;  // for good: Python's function objects point here
  for (const DirectOp& op : direct_ops())
    if (op.name == name) {
      const auto function = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call));
      Callable& callable =
          all.emplace_back(op, otherwise.inc_ref().ptr(), records ? torch.record_of(op.name.c_str()) : nullptr, first,
                           PyMethodDef{op.name.c_str(), function, METH_FASTCALL | METH_KEYWORDS, nullptr});
      const py::capsule self(&callable);
      return py::reinterpret_steal<py::object>(PyCFunction_New(&callable.method, self.ptr()));
    }
  throw py::value_error("direct: unknown op '" + name + "'");
}

// Whether those of the arguments that are tensors are plain, all.
PyObject* are_plain(PyObject*, PyObject* const* objects, Py_ssize_t count) try {
  const bool plain = std::all_of(objects, objects + count, [](PyObject* object) {
    if (!PyObject_TypeCheck(object, torch.tensor)) return true;
    Kind kind;
    void* handle = handle_of(object, kind);
    if (handle) drop_tensor(handle);
    return handle && kind == Kind::Plain;
  });
  return PyBool_FromLong(plain);
} catch (py::error_already_set& error) {
  error.restore();
  return nullptr;
}

void use_torch(const py::type& tensor, const py::type& parameter, const py::dict& dtypes, const py::object& handle_of,
               uintptr_t kind_of, uintptr_t record_of, uintptr_t wrap) {
  torch = {reinterpret_cast<PyTypeObject*>(tensor.inc_ref().ptr()),
           reinterpret_cast<PyTypeObject*>(parameter.inc_ref().ptr()),
           dtypes.inc_ref().ptr(),
           handle_of.inc_ref().ptr(),
           reinterpret_cast<Kind (*)(const void*)>(kind_of),
           reinterpret_cast<Record (*)(const char*)>(record_of),
           reinterpret_cast<PyObject* (*)(const void*)>(wrap)};
}

}  // namespace

void bind_direct(py::module_& m) {
  m.def("use_torch", &use_torch, py::arg("tensor"), py::arg("parameter"), py::arg("dtypes"), py::arg("handle_of"),
        py::arg("kind_of"), py::arg("record_of"), py::arg("wrap"));
  m.def("direct", &direct, py::arg("name"), py::arg("otherwise"), py::arg("records") = false, py::arg("first") = false);
  m.def(
      "records", [](const std::string& name) { return torch.record_of && torch.record_of(name.c_str()); },
      py::arg("name"));
  static PyMethodDef method{"are_plain", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(are_plain)),
                            METH_FASTCALL, nullptr};
  m.add_object("are_plain", py::reinterpret_steal<py::object>(PyCFunction_New(&method, nullptr)));
  m.def("direct_names", [] {
    std::vector<std::string> names;
    for (const DirectOp& op : direct_ops()) names.push_back(op.name);
    return names;
  });
}

}  // namespace torchreduce
