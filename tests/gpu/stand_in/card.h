/* What the stand-ins of CUDA's libraries share: the cards that they pretend to see. */
#pragma once

#define CARDS_MOST 8

/* Cards that CUDA_VISIBLE_DEVICES leaves, by index, and all of them. */
int card_count(void);
const char *card_name(int device);
int cards_of_machine(void);
const char *card_of_machine(int index);

/* One of cudaDeviceAttr, whose numbers are those of CUdevice_attribute. */
int card_attribute(int attribute);

/* The thread's current card. */
int card_current(void);
int card_choose(int device);

/* Have the card's clock, which is simulated, go on by so many milliseconds: a kernel ran. */
void card_work(double milliseconds);
