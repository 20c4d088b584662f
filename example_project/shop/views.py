from django import forms
from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from taskharbor_django.models import Job

from . import orders
from .models import Order, Product
from .tasks import count_visit


class OrderForm(forms.ModelForm):
    class Meta:
        model = Order
        fields = ("quantity", "email")


def home(request):
    return render(request, "shop/home.html", {"products": Product.objects.all()})


def product(request, sku):
    """Show a product; buying it stores the order and its jobs in one transaction."""
    found = get_object_or_404(Product, sku=sku)
    form = OrderForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        return redirect(orders.place(found, **form.cleaned_data))
    if request.method == "GET":
        count_visit.enqueue(found.pk)
    return render(request, "shop/product.html", {"product": found, "form": form})


def picture(request, sku):  # noqa: ARG001  views are given the request
    found = get_object_or_404(Product, sku=sku)
    if found.picture is None:
        raise Http404("The picture is not drawn yet.")
    return HttpResponse(bytes(found.picture), content_type="image/png")


def order(request, reference):
    """Show an order and what becomes of its jobs."""
    found = get_object_or_404(Order.objects.select_related("product"), reference=reference)
    jobs = Job.objects.filter(correlation_id=reference).in_line()
    return render(request, "shop/order.html", {"order": found, "jobs": jobs})


@require_POST
def forget_review(request, reference):
    found = get_object_or_404(Order, reference=reference)
    done = orders.forget_review(found)
    messages.info(request, "We will not ask." if done else "It is too late for that.")
    return redirect(found)
