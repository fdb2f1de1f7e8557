# Finds nvcc and sets WICK_WITH_CUDA; without it the CUDA back end is left out, with a message.
# WICK_CUDA_CODE lists what the binary carries: code for Hopper, and PTX that the driver of every
# card since compute capability 8.0 can compile.
set(WICK_CUDA_CODE "arch=compute_90a,code=sm_90a;arch=compute_80,code=compute_80" CACHE STRING
  "-gencode values of nvcc")

set(WICK_WITH_CUDA OFF)
if(NOT WICK_CUDA OR WICK_SANITIZE OR WICK_FUZZ OR CMAKE_CROSSCOMPILING)
  return()
endif()
find_program(WICK_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
if(NOT WICK_NVCC)
  message(STATUS "wick: nvcc was not found, so the CUDA back end is left out")
  return()
endif()
set(CMAKE_CUDA_COMPILER ${WICK_NVCC})
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
enable_language(CUDA)
# CMake 3.25 does not know that nvcc 13 takes it.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
# cudaGetDriverEntryPointByVersion is there from 12.5 on.
find_package(CUDAToolkit 12.5 QUIET)
if(NOT CUDAToolkit_FOUND OR NOT TARGET CUDA::cudart_static)
  message(STATUS "wick: no CUDA tool kit of 12.5 or later, so the CUDA back end is left out")
  return()
endif()
set(WICK_WITH_CUDA ON)
if(WICK_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${WICK_CCACHE})
endif()

# wick_cuda(target SOURCES …): adds CUDA sources to a layer.
function(wick_cuda target)
  cmake_parse_arguments(A "" "" "SOURCES" ${ARGN})
  target_sources(${target} PRIVATE ${A_SOURCES})
  target_compile_definitions(${target} PRIVATE WICK_WITH_CUDA)
  target_link_libraries(${target} PUBLIC CUDA::cudart_static)
  foreach(code ${WICK_CUDA_CODE})
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode ${code}>")
  endforeach()
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--expt-relaxed-constexpr -Xcompiler -Wall,-Wextra,-Wno-unused-parameter>")
endfunction()
