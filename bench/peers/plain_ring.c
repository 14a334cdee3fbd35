// plain_ring.c - a plain ring, and a bounced cache line, between two pinned processes: no checks, no isolation. The peer of `bulkhead bench ring` and of `circuits.native_vs_copy`.
// Build: gcc -O3 -march=native -o plain_ring plain_ring.c
// Usage: plain_ring spsc  PAYLOAD SLOTS BATCH SECONDS [HUGE=0|1]   SPSC ring, copy-in + copy-out
//        plain_ring pong  SECONDS                       one cache line bounced between the cores: round trip ns
// Core 0 = consumer (parent), core 1 = producer (child). Prints one line.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <immintrin.h>

static void pin(int c){ cpu_set_t s; CPU_ZERO(&s); CPU_SET(c,&s); if(sched_setaffinity(0,sizeof s,&s)) perror("pin"); }
static double now(void){ struct timespec t; clock_gettime(CLOCK_MONOTONIC,&t); return t.tv_sec+t.tv_nsec*1e-9; }

struct ctl {
  _Alignas(128) _Atomic uint64_t head;   // written by producer
  _Alignas(128) _Atomic uint64_t tail;   // written by consumer
  _Alignas(128) _Atomic uint64_t stop;
  _Alignas(4096) uint8_t data[];      // a page, as the private buffers are: misaligned string moves are slow
};
static struct ctl *map(size_t n, int huge){
  void *p = mmap(0,(n+(2<<20))&~(size_t)((2<<20)-1),PROT_READ|PROT_WRITE,MAP_SHARED|MAP_ANONYMOUS|MAP_POPULATE|(huge?MAP_HUGETLB:0),-1,0);
  if(p==MAP_FAILED){ perror("mmap"); exit(1);} return p; }
static volatile uint64_t sinkv;

static int spsc(size_t pay,uint64_t slots,uint64_t batch,double secs,int huge){
  struct ctl *c = map(sizeof *c + pay*slots,huge);
  if(!fork()){ // producer, core 1
    pin(1); uint8_t *src=aligned_alloc(4096,(pay+4095)&~(size_t)4095); memset(src,7,pay);
    uint64_t h=0,tc=0;
    while(!atomic_load_explicit(&c->stop,memory_order_relaxed)){
      if(slots-(h-tc)<batch){ tc=atomic_load_explicit(&c->tail,memory_order_acquire); if(slots-(h-tc)<batch){_mm_pause();continue;} }
      for(uint64_t i=0;i<batch;i++,h++){ *(uint64_t*)src=h; memcpy(c->data+(h%slots)*pay,src,pay); }
      atomic_store_explicit(&c->head,h,memory_order_release);
    }
    _exit(0);
  }
  pin(0); uint8_t *dst=aligned_alloc(4096,(pay+4095)&~(size_t)4095); memset(dst,0,pay);
  uint64_t t=0,n=0,bad=0; double t0=now()+0.5,t1=t0+secs; uint64_t base=0; int started=0; double ts=0,te=0; uint64_t spins=0;
  for(;;){
    uint64_t h=atomic_load_explicit(&c->head,memory_order_acquire);
    if(h==t){ _mm_pause(); if((++spins&1023)==0 && now()>t1+2) break; continue; }
    while(t<h){
      uint64_t e=t+batch; if(e>h)e=h;
      for(;t<e;t++,n++){ memcpy(dst,c->data+(t%slots)*pay,pay); bad+=*(uint64_t*)dst!=t; asm volatile(""::"r"(dst):"memory"); }
      atomic_store_explicit(&c->tail,t,memory_order_release);
    }
    double x=now();
    if(!started&&x>t0){started=1;base=n;ts=x;} if(started&&x>t1){te=x;break;}
  }
  atomic_store(&c->stop,1); atomic_store(&c->tail,t+slots); wait(0);
  double d=te-ts; printf("spsc payload=%zu slots=%lu batch=%lu huge=%d  %.2f Mmsg/s  %.2f GB/s bad=%lu\n",pay,slots,batch,huge,(n-base)/d/1e6,(n-base)*(double)pay/d/1e9,bad);
  return 0;
}
static int pong(double secs){ struct ctl *c=map(sizeof *c,0);
  if(!fork()){ pin(1); uint64_t k=0; while(!atomic_load_explicit(&c->stop,memory_order_relaxed)){ uint64_t h=atomic_load_explicit(&c->head,memory_order_acquire); if(h!=k){k=h;atomic_store_explicit(&c->tail,k,memory_order_release);} } _exit(0);}
  pin(0); double t0=now(),x; uint64_t k=0; do{ for(int i=0;i<1000;i++){ k++; atomic_store_explicit(&c->head,k,memory_order_release); while(atomic_load_explicit(&c->tail,memory_order_acquire)!=k); } }while((x=now())<t0+secs);
  atomic_store(&c->stop,1); wait(0); printf("pong two-cache-line round trip %.1f ns\n",(x-t0)/k*1e9); return 0; }
int main(int c,char**v){
  if(c>5&&!strcmp(v[1],"spsc")) return spsc(atol(v[2]),atol(v[3]),atol(v[4]),atof(v[5]),c>6?atoi(v[6]):0);
  if(c>2&&!strcmp(v[1],"pong")) return pong(atof(v[2]));
  fprintf(stderr,"see the head of plain_ring.c\n"); return 2; }
