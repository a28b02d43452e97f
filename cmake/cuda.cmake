# The CUDA backend: AUTO builds it where nvcc is found, ON demands it, OFF leaves it out. Included at top level, before src/.
# HEADWATER_CUDA_ARCHITECTURES: of the portable kernels; the newest is also kept as PTX for GPUs to come.
set(HEADWATER_CUDA_ARCHITECTURES "80-real;90-real;80-virtual" CACHE STRING "CMAKE_CUDA_ARCHITECTURES of the portable CUDA kernels")
set(HEADWATER_CUDA_FOUND FALSE)
if(NOT HEADWATER_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(HEADWATER_NVCC nvcc HINTS $ENV{CUDACXX} $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
    if(HEADWATER_NVCC)
      set(CMAKE_CUDA_COMPILER ${HEADWATER_NVCC})
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    if(NOT CMAKE_CUDA_HOST_COMPILER)
      set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
    endif()
    if(NOT CMAKE_CUDA_COMPILER_LAUNCHER AND CMAKE_CXX_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
    endif()
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real)  # of CMake's own compiler test; targets set their own
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(HEADWATER_CUDA_FOUND TRUE)
    message(STATUS "CUDA backend: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${HEADWATER_CUDA_ARCHITECTURES}")
  elseif(HEADWATER_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HEADWATER_CUDA=ON, but no nvcc was found")
  else()
    message(STATUS "CUDA backend: not built (nvcc not found)")
  endif()
endif()

# headwater_cuda_objects(NAME ARCHITECTURES LIST SOURCES ...): one kernel directory as an object library of its own, into headwater_cuda.
# Registers, shared memory and spills of each instance are printed where HEADWATER_CUDA_VERBOSE is on.
option(HEADWATER_CUDA_VERBOSE "Print registers and spills of every CUDA kernel instance (-Xptxas -v)" OFF)
function(headwater_cuda_objects name)
  cmake_parse_arguments(ARG "" "" "ARCHITECTURES;SOURCES" ${ARGN})
  add_library(${name} OBJECT ${ARG_SOURCES})

  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${ARG_ARCHITECTURES}" POSITION_INDEPENDENT_CODE ON
  )
  target_include_directories(${name} PRIVATE ${headwater_SOURCE_DIR}/include ${headwater_SOURCE_DIR})
  # CMake 3.25 does not know this nvcc's language levels: the flag is given by hand.
  target_compile_options(${name} PRIVATE -std=c++20 --expt-relaxed-constexpr -lineinfo)
  if(HEADWATER_CUDA_VERBOSE)
    target_compile_options(${name} PRIVATE -Xptxas=-v)
  endif()
  target_sources(headwater_cuda PRIVATE $<TARGET_OBJECTS:${name}>)
endfunction()
