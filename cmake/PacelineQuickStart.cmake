# Debian's LibTorch 1.13 lists OpenCV and FFmpeg among the libraries that it needs, but uses no symbol of either. They bring 200 others,
# and a program that loads all of them takes 1.6 times the processor time to start. The tests start more than a thousand programs, so the programs
# in this project's own build folder load empty libraries of these names instead. Installed programs and `package` tests load the real ones.
get_target_property(torch_cpu torch_cpu LOCATION)
execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${torch_cpu} OUTPUT_VARIABLE headers COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_NM} -D --undefined-only ${torch_cpu} OUTPUT_VARIABLE undefined COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "lib(opencv_|av|sw)[a-z0-9]+\\.so\\.[0-9]+" names "${headers}")
if(NOT names OR undefined MATCHES " U (_ZNK?2cv|av_|avcodec_|avformat_|sws_|swr_)")
  return()
endif()
list(REMOVE_DUPLICATES names)
set(folder ${PROJECT_BINARY_DIR}/empty_libraries)
file(MAKE_DIRECTORY ${folder})
foreach(name IN LISTS names)
  if(NOT EXISTS ${folder}/${name})
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -shared -nostdlib -Wl,-soname,${name} -o ${folder}/${name} -x c++ /dev/null
      COMMAND_ERROR_IS_FATAL ANY)
  endif()
endforeach()
# Only DT_RPATH, not DT_RUNPATH, also applies to the libraries that a library of the program needs. Installation removes it.
set(CMAKE_BUILD_RPATH ${folder})
add_link_options(-Wl,--disable-new-dtags)
