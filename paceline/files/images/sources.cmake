set(SOURCES
  encoded_image.cpp
  image_files.cpp
  image_pipeline.cpp
  resample.cpp
  ${PACELINE_IMAGE_SOURCES})
set(LIBRARIES fmt::fmt ${PACELINE_IMAGE_LIBRARIES})

# One object per instruction set; resample.cpp has the portable one and chooses at run time. The same bits everywhere: sums of integers.
set_source_files_properties(paceline/files/images/resample.cpp PROPERTIES COMPILE_OPTIONS -O3)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND SOURCES resample_avx2.cpp)
  set_source_files_properties(paceline/files/images/resample_avx2.cpp PROPERTIES COMPILE_OPTIONS "-O3;-mavx2")
endif()
# Libraries jump out of the codecs, over frames that hold no object; in one unit with others more would be inlined.
list(TRANSFORM PACELINE_IMAGE_SOURCES PREPEND paceline/files/images/ OUTPUT_VARIABLE codecs)
set_source_files_properties(${codecs} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
