# LibTorch from a Python environment's torch wheel, through imported targets of our own: the wheel's TorchConfig requires a CUDA toolkit even for
# programs that use none, and overrides CMAKE_CUDA_ARCHITECTURES.
#
# reads    LETHE_PYTHON  a python3 whose environment holds torch (default: an active environment, then .venv, then PATH)
# defines  LibTorch::cpu   headers, libtorch, libtorch_cpu, libc10
#          LibTorch::cuda  the same with libtorch_cuda, libc10_cuda and the CUDA runtime that the wheel brings (where it does)
#          LibTorch::cublaslt  cuBLASLt's headers and the library that libtorch_cuda loads (where the wheel's packages have both)
#          LibTorch::distributed  c10d: LibTorch::cpu with USE_C10D_GLOO where Gloo's headers are found (Debian: libgloo-dev), and with LETHE_CUDA
#                          LibTorch::cuda with USE_C10D_NCCL where the wheel's packages have NCCL's
#          LibTorch_ROOT_DIR, LibTorch_VERSION, LibTorch_CUDA_RUNTIME_DIR
if(NOT LETHE_PYTHON)
  set(_environments ${PROJECT_SOURCE_DIR}/.venv/bin)
  if(DEFINED ENV{VIRTUAL_ENV})
    list(PREPEND _environments $ENV{VIRTUAL_ENV}/bin)
  endif()
  find_program(LETHE_PYTHON python3 HINTS ${_environments} DOC "The python3 whose environment holds torch")
endif()
execute_process(
  COMMAND ${LETHE_PYTHON} -c "import importlib.util as u; s = u.find_spec('torch'); print(list(s.submodule_search_locations)[0] if s else '')"
  OUTPUT_VARIABLE LibTorch_ROOT_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(LibTorch_ROOT_DIR)
  file(STRINGS ${LibTorch_ROOT_DIR}/version.py _torch_version REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" LibTorch_VERSION "${_torch_version}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_ROOT_DIR VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "LETHE_PYTHON (${LETHE_PYTHON}): expected an environment with torch, as tools/setup makes, found none")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  set(_lib ${LibTorch_ROOT_DIR}/lib)
  add_library(LibTorch::cpu INTERFACE IMPORTED GLOBAL)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE
    ${LibTorch_ROOT_DIR}/include ${LibTorch_ROOT_DIR}/include/torch/csrc/api/include)
  # libtorch.so exports parts of a std::filesystem of its own, and crashes in its remove_all; the real one must be found first.
  target_link_libraries(LibTorch::cpu INTERFACE stdc++ ${_lib}/libtorch.so ${_lib}/libtorch_cpu.so ${_lib}/libc10.so)
  # The CUDA runtime that torch itself loads, so that there is one runtime in the process.
  file(GLOB _cudart ${LibTorch_ROOT_DIR}/../nvidia/cu*/lib/libcudart.so.* ${LibTorch_ROOT_DIR}/../nvidia/cuda_runtime/lib/libcudart.so.*)
  if(EXISTS ${_lib}/libtorch_cuda.so AND _cudart)
    list(GET _cudart 0 _cudart)
    get_filename_component(_cudart ${_cudart} REALPATH)
    get_filename_component(LibTorch_CUDA_RUNTIME_DIR ${_cudart} DIRECTORY)
    add_library(LibTorch::cuda INTERFACE IMPORTED GLOBAL)
    # Nothing may call into libtorch_cuda, but loading it is what gives Torch its CUDA devices: no linker may drop it as unneeded. One item, which
    # CMake neither splits nor reorders.
    target_link_libraries(LibTorch::cuda INTERFACE
      LibTorch::cpu -Wl,--push-state,--no-as-needed,${_lib}/libtorch_cuda.so,--pop-state ${_lib}/libc10_cuda.so ${_cudart})
    file(GLOB _cublaslt ${LibTorch_CUDA_RUNTIME_DIR}/libcublasLt.so.* ${LibTorch_ROOT_DIR}/../nvidia/cublas/lib/libcublasLt.so.*)
    if(_cublaslt)
      list(GET _cublaslt 0 _cublaslt)
      get_filename_component(_cublaslt ${_cublaslt} REALPATH)
      get_filename_component(_cublaslt_dir ${_cublaslt} DIRECTORY)
      add_library(LibTorch::cublaslt INTERFACE IMPORTED GLOBAL)
      # After the directories of a CUDA toolkit, which may have all of CUDA's headers.
      target_include_directories(LibTorch::cublaslt SYSTEM INTERFACE ${_cublaslt_dir}/../include)
      target_link_libraries(LibTorch::cublaslt INTERFACE ${_cublaslt})
    endif()
  endif()

  # Gloo itself is in libtorch_cpu; libtorch_cuda finds NCCL beside the wheel, wherever the program runs.
  add_library(LibTorch::distributed INTERFACE IMPORTED GLOBAL)
  target_link_libraries(LibTorch::distributed INTERFACE LibTorch::cpu)
  find_path(LibTorch_GLOO_INCLUDE_DIR gloo/algorithm.h)
  if(LibTorch_GLOO_INCLUDE_DIR)
    target_include_directories(LibTorch::distributed SYSTEM INTERFACE ${LibTorch_GLOO_INCLUDE_DIR})
    target_compile_definitions(LibTorch::distributed INTERFACE USE_C10D_GLOO)
  else()
    message(STATUS "Gloo: expected its headers (Debian: libgloo-dev), found none: several processes train on GPUs only")
  endif()
  set(_nccl ${LibTorch_ROOT_DIR}/../nvidia/nccl)
  if(LETHE_CUDA AND TARGET LibTorch::cuda)
    if(EXISTS ${_nccl}/include/nccl.h)
      get_filename_component(_nccl ${_nccl} REALPATH)
      # The toolkit's headers first: the wheel's include files of its crt/, which only a package of nvcc has.
      target_include_directories(LibTorch::distributed SYSTEM INTERFACE
        ${_nccl}/include ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${LibTorch_CUDA_RUNTIME_DIR}/../include)
      target_compile_definitions(LibTorch::distributed INTERFACE USE_C10D_NCCL)
      target_link_libraries(LibTorch::distributed INTERFACE LibTorch::cuda)
    else()
      message(STATUS "NCCL: expected its package beside torch's, found none: several processes train on CPUs only")
    endif()
  endif()
endif()
